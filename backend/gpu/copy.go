package gpu

// #include "gpu_int.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Map is a peer's memory as one of our GPUs sees it; a reference that Close gives back.
type Map struct {
	d *Driver
	c *C.gr_gpu_map
}

// MapState of a Map.
type MapState int

// A mapping of VMM memory is opening until all of its pieces are there; the other states are for good.
const (
	MapOpening MapState = C.GR_GPU_MAP_OPENING
	MapReady   MapState = C.GR_GPU_MAP_READY
	MapFailed  MapState = C.GR_GPU_MAP_FAILED
)

// Map maps a peer's memory for a GPU of ours, or counts one more user of the mapping. feeder: this caller shall bring the pieces, by Add.
// Implements cuIpcOpenMemHandle and cuMemAddressReserve; lasts milliseconds.
func (d *Driver) Map(s Share, device int) (m *Map, feeder bool, err error) {
	m = &Map{d: d}
	var feed C.int
	var f C.gr_gpu_fault
	if rc := C.gg_map_open(d.c, s.c(), C.int(device), &m.c, &feed, &f); rc != 0 {
		return nil, false, fmt.Errorf("GPU %d: %w", device, check(rc, &f))
	}
	return m, feed != 0, nil
}

// Add maps the next pieces; the descriptors are closed whatever comes of it. Implements cuMemImportFromShareableHandle, cuMemMap and
// cuMemSetAccess.
func (m *Map) Add(fds []int32, sizes []uint64) error {
	if len(fds) == 0 || len(fds) != len(sizes) {
		return &Fault{Why: BadShare, Call: "pieces"}
	}
	var f C.gr_gpu_fault
	return check(C.gg_map_add(m.d.c, m.c, C.uint32_t(len(fds)), (*C.int)(&fds[0]), (*C.uint64_t)(&sizes[0]), &f), &f)
}

// Fail gives up bringing pieces.
func (m *Map) Fail(why Why) { C.gg_map_fail(m.d.c, m.c, C.int(why)) }

// State is whether the mapping can be used, and if it has failed, why.
func (m *Map) State() (MapState, error) {
	s := MapState(C.gg_map_state(m.c))
	if s == MapFailed {
		return s, Why(m.c.why)
	}
	return s, nil
}

// At is where the peer's address is here; once the mapping is ready.
func (m *Map) At(addr uint64) uint64 { return addr - uint64(m.c.base) + uint64(m.c.at) }

// Close gives the reference back; with the last the memory is unmapped, and no copy may be under way.
func (m *Map) Close() error {
	var f C.gr_gpu_fault
	return check(C.gg_unmap(m.d.c, m.c, &f), &f)
}

// Table says what is to be added to addresses of remote regions, by their numbers, for one GPU of ours.
type Table struct{ c *C.gr_gpu_table }

// Table makes one without entries.
func (d *Driver) Table(device int) (*Table, error) {
	t := new(Table)
	var f C.gr_gpu_fault
	if rc := C.gg_table(d.c, C.int(device), &t.c, &f); rc != 0 {
		return nil, check(rc, &f)
	}
	return t, nil
}

// Set makes the entry of a region; no copy of the region may be under way. Implements cuMemcpyHtoDAsync.
func (t *Table) Set(region uint32, delta uint64) error {
	var f C.gr_gpu_fault
	return check(C.gg_entry(t.c, C.uint32_t(region), C.uint64_t(delta), &f), &f)
}

// Free gives it back; no copy posted with it may be under way.
func (t *Table) Free() { C.gg_table_free(t.c) }

// Op has the layout of gr_op and plan.Op.
type Op struct {
	Local, Remote, Len        uint64
	LocalRegion, RemoteRegion uint32
}

// Ops gives room for n operations in the pinned arena, to be given back by Free; nil without memory.
func (d *Driver) Ops(n int) []Op {
	mem := d.Alloc(uint64(n) * C.sizeof_gr_op)
	if mem == nil {
		return nil
	}
	return unsafe.Slice((*Op)(mem), n)
}

// FreeOps gives the room back.
func (d *Driver) FreeOps(ops []Op) { d.Free(unsafe.Pointer(unsafe.SliceData(ops))) }

// Lane is a stream of one GPU towards another.
type Lane struct {
	d *Driver
	c *C.gr_gpu_lane
}

// ToHost is the peer of a lane towards host memory.
const ToHost = -1

// Lane opens the lane of a pair, or counts one more user. Implements cuStreamCreateWithPriority.
func (d *Driver) Lane(device, peer int) (*Lane, error) {
	l := &Lane{d: d}
	var f C.gr_gpu_fault
	rc := C.gg_lane(d.c, C.int(device), C.int(peer), &l.c, &f)
	if rc != 0 {
		return nil, check(rc, &f)
	}
	return l, nil
}

// Close gives the lane back; jobs keep it.
func (l *Lane) Close() { C.gg_lane_close(l.d.c, l.c) }

// How a copy is to be made.
type How int

// Auto is by measurement; see docs/gpu.md.
const (
	Auto   How = C.GR_GPU_AUTO
	Kernel How = C.GR_GPU_KERNEL
	Engine How = C.GR_GPU_ENGINE
)

// Work is what to copy: gr_gpu_work. Ops must stay, unchanged and not moved, until the job has ended: of Driver.Ops, or other memory of C.
type Work struct {
	Ops    []Op
	Write  bool
	Table  *Table // nil: Delta is that of all
	Delta  uint64
	How    How
	Blocks int // of 256 threads that the kernel may take; 0: the default
}

// Job is a copy that can be made again and again, by one caller at a time; Cancel alone may come from elsewhere.
type Job struct{ c *C.gr_gpu_job }

// Job makes one.
func (l *Lane) Job() (*Job, error) {
	j := new(Job)
	var f C.gr_gpu_fault
	if rc := C.gg_job(l.c, &j.c, &f); rc != 0 {
		return nil, check(rc, &f)
	}
	return j, nil
}

// Post starts it. Implements cuLaunchKernel or cuMemcpyAsync.
func (j *Job) Post(w Work) error {
	c := C.gr_gpu_work{ops: (*C.gr_op)(unsafe.Pointer(unsafe.SliceData(w.Ops))), nops: C.uint32_t(len(w.Ops)), delta: C.uint64_t(w.Delta),
		how: C.uint32_t(w.How), blocks: C.uint32_t(w.Blocks)}
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

// Poll tells whether it has ended, and how: Cancelled, Lost, or another error of the driver.
func (j *Job) Poll() (ended bool, err error) {
	var f C.gr_gpu_fault
	rc := C.gg_poll(j.c, &f)
	return rc <= 0, check(rc, &f)
}

// Cancel ends it soon; it has to be polled until it has ended.
func (j *Job) Cancel() { C.gg_cancel(j.c) }

// Free fails with Busy while it is under way.
func (j *Job) Free() error { return check(C.gg_job_free(j.c), nil) }

// Counts of what the driver did for us.
type Counts struct{ Launches, EngineCopies, MapsOpen, MapsFailed, Imports, Polls uint64 }

// Counts reads the counters; they only grow.
func (d *Driver) Counts() Counts {
	var n [6]C.uint64_t
	C.gg_counts(d.c, &n[0])
	return Counts{uint64(n[0]), uint64(n[1]), uint64(n[2]), uint64(n[3]), uint64(n[4]), uint64(n[5])}
}
