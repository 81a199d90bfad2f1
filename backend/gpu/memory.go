package gpu

// #include "gpu_int.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Device is what one GPU is.
type Device struct {
	Name     string
	UUID     [16]byte
	PCI      string // as sysfs spells it: 0000:3b:00.0
	SMs      int
	Memory   uint64 // bytes
	DMABuf   bool   // memory can be had as dmabufs
	Flush    bool   // what other devices write is in order for its work only after Driver.Flush
	Kernel   bool   // the copy kernel is loaded; else copy engines serve, for the reason NoKernel (the driver's name of it)
	NoKernel string
}

// Device retains the primary context of the GPU of that ordinal, once, and loads the copy kernel into it. Implements
// cuDevicePrimaryCtxRetain and cuModuleLoadDataEx.
func (d *Driver) Device(ordinal int) (Device, error) {
	var i C.gr_gpu_device_info
	var f C.gr_gpu_fault
	if rc := C.gg_info(d.c, C.int(ordinal), &i, &f); rc != 0 {
		return Device{}, fmt.Errorf("GPU %d: %w", ordinal, check(rc, &f))
	}
	return Device{Name: C.GoString(&i.name[0]), UUID: *(*[16]byte)(unsafe.Pointer(&i.uuid)), PCI: C.GoString(&i.pci[0]), SMs: int(i.sms),
		Memory: uint64(i.memory), DMABuf: i.dmabuf != 0, Flush: i.flush != 0, Kernel: i.kernel != 0, NoKernel: C.GoString(&i.why_text[0])}, nil
}

// Peer tells whether GPU a may map and touch memory of GPU b: nil, or NoPeer. Implements cuDeviceCanAccessPeer.
func (d *Driver) Peer(a, b int) error {
	var f C.gr_gpu_fault
	return check(C.gg_peer(d.c, C.int(a), C.int(b), &f), &f)
}

// Kind of memory.
type Kind int

// What a range may be. UnknownMemory is what the driver has no idea of, HostMemory is pinned.
const (
	UnknownMemory Kind = C.GR_GPU_MEM_UNKNOWN
	HostMemory    Kind = C.GR_GPU_MEM_HOST
	ManagedMemory Kind = C.GR_GPU_MEM_MANAGED
	DeviceMemory  Kind = C.GR_GPU_MEM_DEVICE
	VMMMemory     Kind = C.GR_GPU_MEM_VMM
	PoolMemory    Kind = C.GR_GPU_MEM_POOL
)

func (k Kind) String() string {
	return [...]string{"pageable host memory", "pinned host memory", "managed memory", "device memory (cuMemAlloc)",
		"device memory (VMM)", "device memory of a pool (cudaMallocAsync)"}[k]
}

// Mem is what a range is. The zero Kind has no other fields.
type Mem struct {
	Kind       Kind
	Device     int    // ordinal; -1: none
	Base, Size uint64 // of the allocation; VMM: of the handles that the range touches
	Buffer     uint64 // id of the allocation, never used twice in a process
	Pieces     int    // VMM: handles
	NotShared  error  // why no other process can map it; nil: it can
	c          C.gr_gpu_mem
}

// What tells what [addr, addr+size) is; no context is made. Implements cuPointerGetAttributes. The error is Torn when the range lies in
// more than one allocation, or beyond its end.
func (d *Driver) What(addr, size uint64) (Mem, error) {
	var m Mem
	var f C.gr_gpu_fault
	if rc := C.gg_what(d.c, C.uint64_t(addr), C.uint64_t(size), &m.c, &f); rc != 0 {
		return Mem{}, fmt.Errorf("memory at %#x, %d bytes: %w", addr, size, check(rc, &f))
	}
	m.Kind, m.Device, m.Base, m.Size = Kind(m.c.kind), int(m.c.device), uint64(m.c.base), uint64(m.c.size)
	m.Buffer, m.Pieces = uint64(m.c.buffer), int(m.c.pieces)
	if m.c.why != 0 {
		m.NotShared = Why(m.c.why)
	}
	return m, nil
}

// Fabric tells that it can be shared, but by a handle for NVLink between hosts alone; whether the driver gives one, Share says.
func (m *Mem) Fabric() bool { return m.c.shareable == C.GR_GPU_SHARE_FABRIC }

// Same tells whether the memory at addr still is the allocation of that buffer id: nil, or Changed. Implements cuPointerGetAttribute.
func (d *Driver) Same(addr, buffer uint64) error {
	var f C.gr_gpu_fault
	return check(C.gg_same(d.c, C.uint64_t(addr), C.uint64_t(buffer), &f), &f)
}

// ShareSize is the length of a Share.
const ShareSize = C.sizeof_gr_gpu_share

// Share is what a process of this host needs to map memory, but for descriptors: gr_gpu_share as it is.
type Share [ShareSize]byte

func (s *Share) c() *C.gr_gpu_share { return (*C.gr_gpu_share)(unsafe.Pointer(s)) }

// Pieces is how many descriptors a mapping wants; 0: none.
func (s *Share) Pieces() int {
	if s.c().how != C.GR_GPU_SHARE_FDS {
		return 0
	}
	return int(s.c().pieces)
}

// Mappable tells whether another process can map it at all.
func (s *Share) Mappable() bool { return s.c().how != 0 }

// Base is where its owner has the memory.
func (s *Share) Base() uint64 { return uint64(s.c().base) }

// GPU is the UUID of the memory's.
func (s *Share) GPU() [16]byte { return *(*[16]byte)(unsafe.Pointer(&s.c().gpu)) }

// Owns tells whether a share says that it is of memory of this process.
func (d *Driver) Owns(s *Share) bool { return s.c().owner == d.c.owner }

// Find is the ordinal of the GPU of that UUID, negative where this process sees none.
func (d *Driver) Find(uuid [16]byte) int { return int(C.gg_find(d.c, (*C.uint8_t)(&uuid[0]))) }

// Share implements cuIpcGetMemHandle, for memory with a fabric handle cuMemExportToShareableHandle, and for other VMM memory nothing: see Pieces. The error says why it can't be shared.
func (d *Driver) Share(m Mem) (Share, error) {
	var s Share
	var f C.gr_gpu_fault
	if rc := C.gg_share(d.c, &m.c, s.c(), &f); rc != 0 {
		return Share{}, fmt.Errorf("GPU %d: %w", m.Device, check(rc, &f))
	}
	return s, nil
}

// Pieces makes descriptors of n handles from first on, all or none; the caller closes them. Implements cuMemExportToShareableHandle.
func (d *Driver) Pieces(m Mem, first, n int) (fds []int32, sizes []uint64, err error) {
	if n <= 0 || first < 0 {
		return nil, nil, &Fault{Why: BadShare, Call: "pieces"}
	}
	fds, sizes = make([]int32, n), make([]uint64, n)
	var f C.gr_gpu_fault
	if rc := C.gg_pieces(d.c, &m.c, C.uint32_t(first), C.uint32_t(n), (*C.int)(&fds[0]), (*C.uint64_t)(&sizes[0]), &f); rc != 0 {
		return nil, nil, check(rc, &f)
	}
	return fds, sizes, nil
}

// VRAM allocates memory of ours on a GPU. Implements cuMemAlloc.
func (d *Driver) VRAM(device int, size uint64) (addr uint64, err error) {
	var a C.uint64_t
	var f C.gr_gpu_fault
	rc := C.gg_vram(d.c, C.int(device), C.size_t(size), &a, &f)
	return uint64(a), check(rc, &f)
}

// FreeVRAM gives it back. Implements cuMemFree.
func (d *Driver) FreeVRAM(device int, addr uint64) error {
	var f C.gr_gpu_fault
	return check(C.gg_vram_free(d.c, C.int(device), C.uint64_t(addr), &f), &f)
}

// Pin makes host memory usable in copies, counted by exact range; what somebody else pinned stays as it is. Implements cuMemHostRegister.
func (d *Driver) Pin(addr unsafe.Pointer, size uint64) error {
	var f C.gr_gpu_fault
	return check(C.gg_pin_host(d.c, addr, C.size_t(size), &f), &f)
}

// Unpin ends one Pin of the same range. Implements cuMemHostUnregister.
func (d *Driver) Unpin(addr unsafe.Pointer, size uint64) error {
	var f C.gr_gpu_fault
	return check(C.gg_unpin_host(d.c, addr, C.size_t(size), &f), &f)
}

// Alloc gives memory of the pinned arena, nil without; a GPU must be in use. The contents are arbitrary.
func (d *Driver) Alloc(size uint64) unsafe.Pointer { return C.gg_alloc(d.c, C.size_t(size)) }

// Free gives it back.
func (d *Driver) Free(mem unsafe.Pointer) { C.gg_free(d.c, mem) }

// Core is the gr_gpu_mem that C calls take.
func (m *Mem) Core() unsafe.Pointer { return unsafe.Pointer(&m.c) }
