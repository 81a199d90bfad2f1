package gpu

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#cgo LDFLAGS: -ldl -lpthread
#include <stdlib.h>
#include "cuda_go.h"
*/
import "C"

import (
	"runtime"
	"syscall"
	"unsafe"
)

// result is the result of a driver call: a CUresult.
type result int

// Results that this package handles.
const (
	ok             result = C.CU_OK
	invalidValue   result = C.CU_INVALID_VALUE
	outOfMemory    result = C.CU_OUT_OF_MEMORY
	noDevice       result = C.CU_NO_DEVICE
	osError        result = C.CU_OS
	invalidDevice  result = C.CU_INVALID_DEVICE
	invalidContext result = C.CU_INVALID_CONTEXT
	peerEnabled    result = C.CU_PEER_ENABLED
	hostRegistered result = C.CU_HOST_REGISTERED
	notSupported   result = C.CU_NOT_SUPPORTED
	attrBuffer            = C.CU_PTR_BUFFER
	attrStart             = C.CU_PTR_START
	attrSize              = C.CU_PTR_SIZE
	typeHost              = C.CU_TYPE_HOST
	handleFD              = C.CU_HANDLE_FD
	handleFabric          = C.CU_HANDLE_FABRIC
	rangePlain            = C.CU_RANGE_PLAIN
	rangePCIe             = C.CU_RANGE_PCIE
	maxPieces             = C.GG_PIECES
	maxDevices            = C.GG_DEVICES
)

// Reasons; gr_gpu.h has their texts.
const (
	NoLibrary  Why = C.GR_GPU_NO_LIBRARY
	NotADriver Why = C.GR_GPU_NOT_A_DRIVER
	OldDriver  Why = C.GR_GPU_OLD_DRIVER
	NoDevice   Why = C.GR_GPU_NO_DEVICE
	Failed     Why = C.GR_GPU_DRIVER
	NoMemory   Why = C.GR_GPU_NO_MEMORY
	Lost       Why = C.GR_GPU_LOST
	Unknown    Why = C.GR_GPU_HOST
	Torn       Why = C.GR_GPU_TORN
	Changed    Why = C.GR_GPU_CHANGED
	NoHandle   Why = C.GR_GPU_NO_HANDLE
	Pool       Why = C.GR_GPU_POOL
	Managed    Why = C.GR_GPU_MANAGED
	Pinned     Why = C.GR_GPU_PINNED
	NoPeer     Why = C.GR_GPU_NO_PEER
	Unseen     Why = C.GR_GPU_UNSEEN
	Refused    Why = C.GR_GPU_REFUSED
	NoFDs      Why = C.GR_GPU_NO_FDS
	BadShare   Why = C.GR_GPU_BAD_SHARE
	NoDMABuf   Why = C.GR_GPU_NO_DMABUF
	Busy       Why = C.GR_GPU_BUSY
	Cancelled  Why = C.GR_GPU_CANCELLED
	Silent     Why = C.GR_GPU_SILENT
	NoFabric   Why = C.GR_GPU_NO_FABRIC
	NotAway    Why = C.GR_GPU_NO_AWAY
	Fabrics    Why = C.GR_GPU_FABRICS
	SamePID    Why = C.GR_GPU_SAME_PID
	Layout     Why = C.GR_GPU_LAYOUT
	Unproved   Why = C.GR_GPU_UNPROVED
	Unmapped   Why = C.GR_GPU_UNMAPPED
	Forbidden  Why = C.GR_GPU_FORBIDDEN
	NotBoth    Why = C.GR_GPU_NOT_BOTH
	NoPack     Why = C.GR_GPU_NO_PACK
	BadPack    Why = C.GR_GPU_BAD_PACK
	WhyCount       = C.GR_GPU_WHY_COUNT // the number of reasons, including 0 (no error)
)

// calls is the driver. Each method makes the driver call that its comment names.
type calls struct{ c *C.gr_gpu }

// cuInit
func (d calls) init() result { return result(C.gc_init(d.c)) }

// cuDeviceGetCount
func (d calls) count() (n int, r result) {
	var c C.int
	r = result(C.gc_device_count(d.c, &c))
	return int(c), r
}

// cuDeviceGet
func (d calls) get(ordinal int) (device int, r result) {
	var c C.int
	r = result(C.gc_device_get(d.c, &c, C.int(ordinal)))
	return int(c), r
}

// cuDeviceGetUuid
func (d calls) uuid(device int) (u [16]byte, r result) {
	r = result(C.gc_device_uuid(d.c, (*C.uint8_t)(&u[0]), C.int(device)))
	return u, r
}

// cuDeviceGetAttribute
func (d calls) fabric(device int) bool {
	var c C.int
	return C.gc_device_attr(d.c, &c, C.CU_DEV_FABRIC, C.int(device)) == C.CU_OK && c != 0
}

// cuDeviceCanAccessPeer
func (d calls) canAccess(a, b int) (can bool, r result) {
	var c C.int
	r = result(C.gc_device_peer(d.c, &c, C.int(a), C.int(b)))
	return c != 0, r
}

// pointer holds the driver's attributes of a pointer.
type pointer struct {
	kind                uint32 // 0: unknown to the driver
	managed             bool
	device              int
	buffer, start, size uint64
}

// cuPointerGetAttributes
func (d calls) pointer(at uint64) (pointer, result) {
	var p C.gc_ptr
	r := result(C.gc_ptr_attrs(d.c, C.uint64_t(at), &p))
	return pointerOf(&p), r
}

func pointerOf(p *C.gc_ptr) pointer {
	return pointer{uint32(p._type), p.managed != 0, int(p.device), uint64(p.buffer), uint64(p.start), uint64(p.size)}
}

// look describes memory: cuPointerGetAttributes, cuMemRetainAllocationHandle, cuPointerGetAttribute (MEMPOOL_HANDLE). A buffer with the id plain is known
// to be memory of cuMemAlloc; 0: none is.
func (d calls) look(at, plain uint64) (p pointer, vmm, pool bool, r result) {
	var of struct {
		p         C.gc_ptr
		vmm, pool C.int
	}
	r = result(C.gc_look(d.c, C.uint64_t(at), C.uint64_t(plain), &of.p, &of.vmm, &of.pool))
	return pointerOf(&of.p), of.vmm != 0, of.pool != 0, r
}

// cuPointerGetAttribute
func (d calls) attr(which int, at uint64) (uint64, result) {
	var v C.uint64_t
	r := result(C.gc_ptr_word(d.c, &v, C.int(which), C.uint64_t(at)))
	return uint64(v), r
}

// handle returns the mapping of the VMM handle at an address: cuPointerGetAttributes
func (d calls) handle(at uint64) (base, size uint64, is bool) {
	var m C.gc_mapping
	r := result(C.gc_mapping_at(d.c, C.uint64_t(at), &m))
	return uint64(m.base), uint64(m.size), r == ok && at-uint64(m.base) < uint64(m.size)
}

// handles describes the VMM handles of one GPU that a range touches, end to end, at most so many: cuPointerGetAttributes for each
func (d calls) handles(from, end uint64, device, most int) (base, size, types uint64, n int, are bool) {
	var h C.gc_handles
	are = C.gc_handles_of(d.c, C.uint64_t(from), C.uint64_t(end), C.int(device), C.int(most), nil, &h) != 0
	return uint64(h.base), uint64(h.end - h.base), uint64(h.types), int(h.count), are
}

// parts lists the VMM handles of one GPU that a range touches, and the types that all of them can be exported as:
// cuPointerGetAttributes for each
func (d calls) parts(from, end uint64, device int) (list []part, types uint64, are bool) {
	const some = 64
	var h C.gc_handles
	types = ^uint64(0)
	for from < end {
		more := make([]part, some)
		if C.gc_handles_of(d.c, C.uint64_t(from), C.uint64_t(end), C.int(device), some, (*C.gr_gpu_part)(unsafe.Pointer(&more[0])), &h) == 0 {
			return nil, 0, false
		}
		list, types, from = append(list, more[:h.count]...), types&uint64(h.types), uint64(h.end)
	}
	return list, types, true
}

// cuPointerSetAttribute (SYNC_MEMOPS); old drivers lack it
func (d calls) syncMemops(at uint64) { C.gc_sync_memops(d.c, C.uint64_t(at)) }

// cuMemRetainAllocationHandle; the caller releases the handle
func (d calls) retain(at uint64) (handle uint64, r result) {
	var h C.uint64_t
	r = result(C.gc_retain(d.c, &h, C.uint64_t(at)))
	return uint64(h), r
}

// cuMemCreate; a file descriptor can share the memory, and other devices can reach it if the GPU allows that
func (d calls) create(device int, size uint64, types int) (handle uint64, r result) {
	var h C.uint64_t
	r = result(C.gc_create(d.c, &h, C.int(device), C.size_t(size), C.int(types)))
	return uint64(h), r
}

// cuMemRelease
func (d calls) release(handle uint64) { C.gc_release(d.c, C.uint64_t(handle)) }

// cuMemExportToShareableHandle
func (d calls) exportFD(handle uint64) (fd int, r result) {
	c := C.int(-1)
	r = result(C.gc_export_fd(d.c, &c, C.uint64_t(handle)))
	return private(int(c), r), r
}

// private keeps a descriptor from programs that this process executes. The driver does not promise that.
func private(fd int, r result) int {
	if r == ok {
		syscall.CloseOnExec(fd)
	}
	return fd
}

// cuMemExportToShareableHandle
func (d calls) exportFabric(handle uint64, out *[64]byte) result {
	return result(C.gc_export_fabric(d.c, (*C.uint8_t)(&out[0]), C.uint64_t(handle)))
}

// cuMemImportFromShareableHandle
func (d calls) importFD(fd int) (handle uint64, r result) {
	var h C.uint64_t
	r = result(C.gc_import_fd(d.c, &h, C.int(fd)))
	return uint64(h), r
}

// cuMemImportFromShareableHandle
func (d calls) importFabric(from *[64]byte) (handle uint64, r result) {
	var h C.uint64_t
	r = result(C.gc_import_fabric(d.c, &h, (*C.uint8_t)(&from[0])))
	return uint64(h), r
}

// cuMemAddressReserve
func (d calls) reserve(size uint64) (at uint64, r result) {
	var a C.uint64_t
	r = result(C.gc_reserve(d.c, &a, C.uint64_t(size)))
	return uint64(a), r
}

// cuMemAddressFree
func (d calls) unreserve(at, size uint64) result {
	return result(C.gc_unreserve(d.c, C.uint64_t(at), C.uint64_t(size)))
}

// cuMemMap
func (d calls) mapAt(at, size, handle uint64) result {
	return result(C.gc_map(d.c, C.uint64_t(at), C.uint64_t(size), C.uint64_t(handle)))
}

// cuMemUnmap
func (d calls) unmapAt(at, size uint64) result {
	return result(C.gc_unmap(d.c, C.uint64_t(at), C.uint64_t(size)))
}

// cuMemSetAccess
func (d calls) access(at, size uint64, ordinal int) result {
	return result(C.gc_access(d.c, C.uint64_t(at), C.uint64_t(size), C.int(ordinal)))
}

// cuMemGetAccess: whether a GPU may read and write
func (d calls) allowed(at uint64, device int) bool {
	return C.gc_allowed(d.c, C.uint64_t(at), C.int(device)) != 0
}

// ipcOf gets the handle of an allocation, while that has this id, within the GPU's context. changed: it has another. Implements cuIpcGetMemHandle.
func (d calls) ipcOf(ordinal int, at, buffer uint64, out *[64]byte) (changed bool, call string, r result) {
	var c C.int
	var name *C.char
	r = result(C.gc_ipc_of(d.c, C.int(ordinal), C.uint64_t(at), C.uint64_t(buffer), (*C.uint8_t)(&out[0]), &c, &name))
	if r != ok {
		call = C.GoString(name)
	}
	return c != 0, call, r
}

// cuIpcOpenMemHandle, of memory of that size
func (d calls) ipcOpen(handle *[64]byte, size uint64) (at uint64, r result) {
	var a C.uint64_t
	r = result(C.gc_ipc_open(d.c, &a, (*C.uint8_t)(&handle[0]), C.uint64_t(size)))
	return uint64(a), r
}

// cuIpcCloseMemHandle
func (d calls) ipcClose(at uint64) result { return result(C.gc_ipc_close(d.c, C.uint64_t(at))) }

// cuCtxEnablePeerAccess, for a GPU that is in use
func (d calls) enablePeer(ordinal int) result { return result(C.gc_enable_peer(d.c, C.int(ordinal))) }

// cuMemGetHandleForAddressRange; only for a GPU with hasDMABuf
func (d calls) rangeFD(at, size uint64, how int) (fd int, r result) {
	c := C.int(-1)
	r = result(C.gc_range(d.c, &c, C.uint64_t(at), C.uint64_t(size), C.int(how)))
	return private(int(c), r), r
}

func (d calls) hasDMABuf(ordinal int) bool { return C.gc_has_dmabuf(d.c, C.int(ordinal)) != 0 }

// cuMemHostRegister
func (d calls) hostRegister(at unsafe.Pointer, size uint64) result {
	return result(C.gc_host_register(d.c, at, C.size_t(size)))
}

// cuMemHostUnregister
func (d calls) hostUnregister(at unsafe.Pointer) result { return result(C.gc_host_unregister(d.c, at)) }

// cuGetErrorName
func (d calls) errorName(r result) string { return C.GoString(C.gc_error_name(d.c, C.int(r))) }

// first returns the GPU that was used first; -1: none.
func (d calls) first() int { return int(C.gc_first(d.c)) }

// within runs f with the context of a GPU in use as the thread's current context. Implements cuCtxPushCurrent and
// cuCtxPopCurrent.
func (d *Driver) within(ordinal int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if r := result(C.gc_enter(d.calls.c, C.int(ordinal))); r != ok {
		return d.failed(r, "cuCtxPushCurrent")
	}
	defer C.gc_leave(d.calls.c)
	return f()
}

// present implements gg_present.
func present(path string) int {
	c := C.CString(path)
	defer C.free(unsafe.Pointer(c))
	return int(C.gg_present(c))
}

// inUse implements gg_in_use.
func inUse(path string) bool {
	c := C.CString(path)
	defer C.free(unsafe.Pointer(c))
	return C.gg_in_use(c) != 0
}
