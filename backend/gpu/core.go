package gpu

// #include <stdlib.h>
// #include "gpu_int.h"
import "C"

import (
	_ "embed"
	"fmt"
	"sync"
	"unsafe"
)

// load loads the driver library. Implements dlopen and cuGetProcAddress: gg_open.
func load(path string) (*C.gr_gpu, error) {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var f C.gr_gpu_fault
	c := C.gg_open(cpath, (*C.char)(image()), (*C.char)(packImage()), &f)
	if c == nil {
		return nil, fault(&f)
	}
	return c, nil
}

//go:embed kernel/gather.ptx
var ptx string

//go:embed kernel/pack.ptx
var packPTX string

// image and packImage are the kernels as C strings, which are never freed.
var (
	image     = sync.OnceValue(func() unsafe.Pointer { return unsafe.Pointer(C.CString(ptx)) })
	packImage = sync.OnceValue(func() unsafe.Pointer { return unsafe.Pointer(C.CString(packPTX)) })
)

// set stores the number of devices and the owner id, before the driver is used.
func (d calls) set(devices int, owner [16]byte) {
	d.c.devices = C.int32_t(devices)
	d.c.owner = *(*[16]C.uint8_t)(unsafe.Pointer(&owner))
}

func (d calls) owner() [16]byte { return *(*[16]byte)(unsafe.Pointer(&d.c.owner)) }

// held reports open streams or tables. Implements gg_busy.
func (d calls) held() bool { return C.gg_busy(d.c) != 0 }

// unload implements gg_close. Busy: streams or tables are open.
func (d calls) unload() error { return check(C.gg_close(d.c), nil) }

// Core is the gr_gpu for C callers, valid until Close.
func (d *Driver) Core() unsafe.Pointer { return unsafe.Pointer(d.c) }

// Devices is the number of GPUs that this process sees.
func (d *Driver) Devices() int { return int(d.c.devices) }

// Version is the CUDA version of the driver: 13000 is 13.0.
func (d *Driver) Version() int { return int(d.c.version) }

func (w Why) Error() string { return C.GoString(C.gr_gpu_why_text(C.int(w))) }

func fault(f *C.gr_gpu_fault) error {
	return &Fault{Why: Why(f.why), Result: int(f.result), Call: C.GoString(f.call), Text: C.GoString(&f.text[0])}
}

// check converts the return code of a call to an error.
func check(rc C.int, f *C.gr_gpu_fault) error {
	if rc >= 0 {
		return nil
	}
	if f == nil || f.why == 0 {
		return &Fault{Why: Why(-rc)}
	}
	return fault(f)
}

// Device retains the primary context of a GPU once. Implements cuDevicePrimaryCtxRetain.
func (d *Driver) Device(ordinal int) (Device, error) {
	i, err := d.info(ordinal)
	if err != nil {
		return Device{}, fmt.Errorf("GPU %d: %w", ordinal, err)
	}
	return *i, nil
}

// info is Device without a copy. It does not change: the driver is asked once.
func (d *Driver) info(ordinal int) (*Device, error) {
	if ordinal >= 0 && ordinal < len(d.infos) {
		if i := d.infos[ordinal].Load(); i != nil {
			return i, nil
		}
	}
	var i C.gr_gpu_device_info
	var f C.gr_gpu_fault
	if rc := C.gg_info(d.c, C.int(ordinal), &i, &f); rc != 0 {
		return nil, check(rc, &f)
	}
	is := &Device{Name: C.GoString(&i.name[0]), UUID: *(*[16]byte)(unsafe.Pointer(&i.uuid)), PCI: C.GoString(&i.pci[0]), SMs: int(i.sms),
		Memory: uint64(i.memory), DMABuf: i.dmabuf != 0, Flush: i.flush != 0}
	d.infos[ordinal].Store(is)
	return is, nil
}

// Kernel loads the copy kernel into a GPU's context once, which takes a fifth of a second where the driver's cache does not have it. refusal:
// why copy engines are used instead; "": they are not. Streams wait for it. Implements cuModuleLoadDataEx.
func (d *Driver) Kernel(ordinal int) (refusal string, err error) {
	var loaded C.int
	var f C.gr_gpu_fault
	if rc := C.gg_kernel(d.c, C.int(ordinal), &loaded, &f); rc != 0 {
		return "", fmt.Errorf("GPU %d: %w", ordinal, check(rc, &f))
	}
	if loaded == 0 {
		refusal = C.GoString(&f.text[0])
	}
	return refusal, nil
}

// WarmUp is Kernel in the background: a registration does not wait for it, and then is told the refusal. Close waits for it.
func (d *Driver) WarmUp(ordinal int, then func(refusal string)) {
	d.warming.Go(func() {
		if refusal, err := d.Kernel(ordinal); err == nil { // else streams have the error
			then(refusal)
		}
	})
}

// warmOnce is WarmUp at the first use of a GPU.
func (d *Driver) warmOnce(ordinal int) {
	d.warm[ordinal].Do(func() { d.WarmUp(ordinal, func(string) {}) })
}

// VRAM allocates GPU memory. Implements cuMemAlloc.
func (d *Driver) VRAM(device int, size uint64) (addr uint64, err error) {
	var a C.uint64_t
	var f C.gr_gpu_fault
	rc := C.gg_vram(d.c, C.int(device), C.size_t(size), &a, &f)
	return uint64(a), check(rc, &f)
}

// freeVRAM frees memory of VRAM. Implements cuMemFree.
func (d *Driver) freeVRAM(device int, addr uint64) error {
	var f C.gr_gpu_fault
	return check(C.gg_vram_free(d.c, C.int(device), C.uint64_t(addr), &f), &f)
}

// bytes copies b to or from GPU memory, and waits. Implements cuMemcpyHtoDAsync or cuMemcpyAsync.
func (d *Driver) bytes(device int, write bool, addr uint64, b []byte) error {
	mem := d.Alloc(uint64(len(b)))
	if mem == nil {
		return &Fault{Why: NoMemory, Call: "cuMemHostAlloc"}
	}
	here := unsafe.Slice((*byte)(mem), len(b))
	in := C.int(0)
	if write {
		in = 1
		copy(here, b)
	}
	var f C.gr_gpu_fault
	if err := check(C.gg_bytes(d.c, C.int(device), in, C.uint64_t(addr), mem, C.size_t(len(b)), &f), &f); err != nil {
		return err // the memory stays allocated: the copy may still use it
	}
	copy(b, here)
	d.Free(mem)
	return nil
}

// Alloc returns memory of the pinned arena with arbitrary contents; nil: out of memory. A GPU must be in use.
func (d *Driver) Alloc(size uint64) unsafe.Pointer { return C.gg_alloc(d.c, C.size_t(size)) }

// Free returns memory to the pinned arena.
func (d *Driver) Free(mem unsafe.Pointer) { C.gg_free(d.c, mem) }

// Flush makes writes of other devices visible to the GPU's work. It does nothing if Device.Flush is false. Implements
// cuFlushGPUDirectRDMAWrites.
func (d *Driver) Flush(device int) error {
	var f C.gr_gpu_fault
	return check(C.gg_flush(d.c, C.int(device), &f), &f)
}

// Flusher returns Flush for C, as call(arg), valid while the driver is open. nil: the GPU's work sees writes of other devices
// without a flush.
func (d *Driver) Flusher(device int) (call, arg unsafe.Pointer) {
	if arg = C.gg_flusher(d.c, C.int(device)); arg != nil {
		call = C.gg_flush_dev
	}
	return call, arg
}

// Table holds the address deltas of remote regions, by region index, for one local GPU.
type Table struct{ c *C.gr_gpu_table }

// Table makes an empty table.
func (d *Driver) Table(device int) (*Table, error) {
	t := new(Table)
	var f C.gr_gpu_fault
	if rc := C.gg_table(d.c, C.int(device), &t.c, &f); rc != 0 {
		return nil, check(rc, &f)
	}
	return t, nil
}

// Set sets the entry of a region. No copy of the region may be in progress. Implements cuMemcpyHtoDAsync.
func (t *Table) Set(region uint32, delta uint64) error {
	var f C.gr_gpu_fault
	return check(C.gg_entry(t.c, C.uint32_t(region), C.uint64_t(delta), &f), &f)
}

// Free frees the table. No copy posted with it may be in progress.
func (t *Table) Free() { C.gg_table_free(t.c) }

// Op has the layout of gr_op and plan.Op.
type Op struct {
	Local, Remote, Len        uint64
	LocalRegion, RemoteRegion uint32
}

// Ops allocates n operations in the pinned arena; nil: out of memory. FreeOps frees them.
func (d *Driver) Ops(n int) []Op {
	mem := d.Alloc(uint64(n) * C.sizeof_gr_op)
	if mem == nil {
		return nil
	}
	return unsafe.Slice((*Op)(mem), n)
}

// FreeOps frees operations of Ops.
func (d *Driver) FreeOps(ops []Op) { d.Free(unsafe.Pointer(unsafe.SliceData(ops))) }

// Stream is a CUDA stream of one GPU for copies to and from a peer GPU or host memory.
type Stream struct {
	d *Driver
	c *C.gr_gpu_stream
}

// ToHost is the peer number of streams for host memory.
const ToHost = -1

// Stream opens the stream of a pair, or counts one more user. Implements cuStreamCreateWithPriority.
func (d *Driver) Stream(device, peer int) (*Stream, error) {
	l := &Stream{d: d}
	var f C.gr_gpu_fault
	rc := C.gg_stream(d.c, C.int(device), C.int(peer), &l.c, &f)
	if rc != 0 {
		return nil, check(rc, &f)
	}
	return l, nil
}

// Close ends one use of the stream. Jobs keep the stream open.
func (l *Stream) Close() { C.gg_stream_close(l.d.c, l.c) }

// How selects the method of a copy.
type How int

// Auto selects by size, according to measurements; see docs/gpu.md.
const (
	Auto   How = C.GR_GPU_AUTO
	Kernel How = C.GR_GPU_KERNEL
	Engine How = C.GR_GPU_ENGINE
)

// HowOf returns what the option gpu_copy names (kernel, engine; all other words: Auto).
func HowOf(word string) How { return map[string]How{"kernel": Kernel, "engine": Engine}[word] }

// Pack says whether a copy compresses.
type Pack int

// Packed copies the local pieces to Work.Slot as a packed chunk, and Unpacked a packed chunk in Work.Slot to the local pieces. gr_pack.h has the
// form of a chunk.
const (
	Clear    Pack = C.GR_GPU_CLEAR
	Packed   Pack = C.GR_GPU_PACK
	Unpacked Pack = C.GR_GPU_UNPACK
)

// Work describes a copy: gr_gpu_work. Ops must stay unchanged and in place until the job has ended. They come from Driver.Ops
// or from other C memory. With Pack, Remote of the operations is the driver's, and Write, Table, Delta and How are not used.
type Work struct {
	Ops    []Op
	Write  bool
	Table  *Table // nil: Delta applies to all operations
	Delta  uint64
	How    How
	Pack   Pack
	Slot   uint64 // pinned host memory for the packed chunk, aligned to 16; of Packed, as long as the operations are
	Packed uint32 // Unpacked: bytes of the packed chunk
}

// PackRoom makes GPU memory for Work with Pack of up to so many bytes, until the stream is closed; for 4 MiB it takes 8. NoPack: the driver
// cannot translate the kernels. Implements cuMemAlloc, cuModuleLoadDataEx.
func (l *Stream) PackRoom(bytes uint64) error {
	var f C.gr_gpu_fault
	return check(C.gg_pack_room(l.c, C.uint64_t(bytes), &f), &f)
}

// Job is a copy that can be posted repeatedly, by one caller at a time. Only Cancel may come from other threads.
type Job struct{ c *C.gr_gpu_job }

// Job makes a job.
func (l *Stream) Job() (*Job, error) {
	j := new(Job)
	var f C.gr_gpu_fault
	if rc := C.gg_job(l.c, &j.c, &f); rc != 0 {
		return nil, check(rc, &f)
	}
	return j, nil
}

// Post starts the job. Implements cuLaunchKernel or cuMemcpyAsync.
func (j *Job) Post(w Work) error {
	c := C.gr_gpu_work{ops: (*C.gr_op)(unsafe.Pointer(unsafe.SliceData(w.Ops))), nops: C.uint32_t(len(w.Ops)), delta: C.uint64_t(w.Delta),
		how: C.uint32_t(w.How), pack: C.uint32_t(w.Pack), slot: C.uint64_t(w.Slot), packed: C.uint32_t(w.Packed)}
	for i := range w.Ops {
		c.bytes += C.uint64_t(w.Ops[i].Len)
	}
	if w.Write {
		c.write = 1
	}
	if w.Table != nil {
		c.table = w.Table.c
	}
	var f C.gr_gpu_fault
	return check(C.gg_post(j.c, &c, &f), &f)
}

// Poll reports whether the job has ended. err is Cancelled, Lost, or another error of the driver.
func (j *Job) Poll() (ended bool, err error) {
	var f C.gr_gpu_fault
	rc := C.gg_poll(j.c, &f)
	return rc <= 0, check(rc, &f)
}

// Packed is the number of bytes of the packed chunk that the job has made. 0: the slot has the bytes in clear.
func (j *Job) Packed() uint64 { return uint64(C.gg_packed(j.c)) }

// Cancel makes the job end soon. The caller polls until the job has ended.
func (j *Job) Cancel() { C.gg_cancel(j.c) }

// Free frees the job. Busy: the job is in progress.
func (j *Job) Free() error { return check(C.gg_job_free(j.c), nil) }

// Counts holds counters of driver calls.
type Counts struct{ Launches, EngineCopies, MapsOpen, MapsFailed, Imports, Polls uint64 }

// Counts reads the counters, which only grow.
func (d *Driver) Counts() Counts {
	var n [3]C.uint64_t
	C.gg_counts(d.c, &n[0])
	return Counts{Launches: uint64(n[0]), EngineCopies: uint64(n[1]), Polls: uint64(n[2]), MapsOpen: d.maps.opened.Load(), MapsFailed: d.maps.failed.Load(),
		Imports: d.maps.imports.Load()}
}

// lost reports that all further calls of this process will fail.
func (r result) lost() bool { return C.gg_lost(C.int(r)) != 0 }
