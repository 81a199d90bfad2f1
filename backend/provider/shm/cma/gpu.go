package cma

/*
#include <stdlib.h>
#include "cma.h"

static int cma_mapping(cma_rail *rail) { return atomic_load(&rail->mapper.opening) != 0; }
static void cma_finish_view(cma_view *v, uint8_t *at, int writable, uint64_t dev, uint64_t inode, uint64_t offset, uint64_t retry_ms)
{
    v->dev = dev;
    v->inode = inode;
    v->offset = offset;
    if (retry_ms)
        v->retry_ns = cma_now() + retry_ms * 1000000;
    v->at = at;
    v->writable = writable;
    atomic_store(&v->state, at ? CMA_VIEW_READY : CMA_VIEW_FAILED);
}
static void cma_free_view(cma_rail *rail, cma_view *v)
{
    atomic_fetch_sub(&rail->mapper.views, 1);
    atomic_fetch_sub(&rail->mapper.view_bytes, v->len);
    free(v);
}
static uint64_t cma_viewed(cma_rail *rail) { return atomic_load(&rail->mapper.viewed); }
static void cma_know(cma_rail *rail, uint32_t entry, void *desc) { atomic_store(&rail->known[entry], (cma_vram *)desc); }
static void cma_use_maps(cma_rail *rail, int fd) { atomic_store(&rail->maps, fd); }
static int cma_late_gpu(cma_rail *rail)
{
    gr_rail_lock(&rail->base);
    int device = rail->gpu.late_device;
    gr_rail_unlock(&rail->base);
    return device;
}
static uint32_t cma_jobs_kept(cma_rail *rail)
{
    if (atomic_load(&rail->gpu.nkept)) {
        gr_rail_lock(&rail->base);
        cma_bulk_poll(rail);
        gr_rail_unlock(&rail->base);
    }
    return atomic_load(&rail->gpu.nkept);
}
static void cma_set_gpu(cma_rail *rail, void *gpu) { atomic_store(&rail->gpu.driver, (gr_gpu *)gpu); }
*/
import "C"

import (
	"time"
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/shm/ipc"
)

// Use sets the driver of the GPUs. Each registration of a GPU region calls it, with the same driver.
func (k Rail) Use(d *gpu.Driver) {
	k.loaded.Store(d)
	C.cma_set_gpu(k.c, d.Core())
}

// LateGPU is the GPU that did not end a copy when that was waited for last.
func (k Rail) LateGPU() int { return int(C.cma_late_gpu(k.c)) }

// JobsKept is the number of jobs that GPUs have not ended, of closed endpoints. It polls them.
func (k Rail) JobsKept() int { return int(C.cma_jobs_kept(k.c)) }

// Driver is the driver of the GPUs; nil: no GPU region yet.
func (k Rail) Driver() *gpu.Driver { return k.loaded.Load() }

// Mapping reports that a peer's memory is being mapped.
func (k Rail) Mapping() bool { return C.cma_mapping(k.c) != 0 }

// LastError is the last reason why GPU memory could not be reached. Implements cma_last_error.
func (k Rail) LastError() string {
	var text [512]C.char
	C.cma_last_error(k.c, &text[0], C.size_t(len(text)))
	return C.GoString(&text[0])
}

// NewDesc makes the core's descriptor for a region of that memory. C owns the memory of the descriptor.
func NewDesc(m *gpu.Mem) (unsafe.Pointer, error) {
	v, err := clib.Zeroed("cma_desc", 1, C.sizeof_cma_vram+uintptr(m.PartsSize()))
	if err != nil {
		return nil, err
	}
	parts := unsafe.Add(v, C.sizeof_cma_vram)
	m.PutParts(parts)
	(*C.cma_vram)(v).device, (*C.cma_vram)(v).parts = C.int(m.Device), (*C.gr_gpu_parts)(parts)
	return v, nil
}

// Know lets the core answer peers' questions about the GPU memory of an entry: whether it is still what was registered. nil: the
// region is gone, and no answer is under way.
func (k Rail) Know(entry uint32, desc unsafe.Pointer) { C.cma_know(k.c, C.uint32_t(entry), desc) }

// UseMaps lets the core answer peers' questions about files that are mapped here, by /proc/self/maps. The core closes fd.
func (k Rail) UseMaps(fd int) { C.cma_use_maps(k.c, C.int(fd)) }

// Told implements cma_change_told.
func (k Rail) Told() { C.cma_change_told(k.c) }

// Looks begins a look at all memory: changes that peers find from now on add another TaskChanged.
func (k Rail) Looks() { C.cma_looks(k.c) }

// RetireDesc frees a descriptor when no copy that was posted uses it. No entry and no answer uses it. Implements cma_vram_retire.
func (k Rail) RetireDesc(desc unsafe.Pointer) { C.cma_vram_retire(k.c, (*C.cma_vram)(desc)) }

// SetDescKey tells a descriptor the key of its region.
func SetDescKey(desc unsafe.Pointer, key uint64) {
	(*C.cma_vram)(desc).region = C.cma_region_bit(C.uint64_t(key))
}

// FreeDesc frees a descriptor of NewDesc that was never used.
func FreeDesc(desc unsafe.Pointer) { C.free(desc) }

// SetLastError implements cma_set_last_error.
func (k Rail) SetLastError(text string) {
	c := C.CString(text)
	defer C.free(unsafe.Pointer(c))
	C.cma_set_last_error(k.c, c)
}

// ---- tasks of the mapper ----

// Task is a task of the mapper.
type Task struct {
	What int    // TaskBegin, TaskEnd, TaskViewBegin, TaskViewEnd, or CMA_PAIR: make a stream and a job
	In   Import // of TaskBegin and TaskEnd
	View View   // of TaskViewBegin and TaskViewEnd
	c    *C.cma_task
}

// Kinds of tasks: map an import or a view, unmap it.
const (
	TaskBegin     = C.CMA_BEGIN
	TaskEnd       = C.CMA_END
	TaskViewBegin = C.CMA_VIEW_BEGIN
	TaskViewEnd   = C.CMA_VIEW_END
	TaskChanged   = C.CMA_CHANGED // memory of ours is not what was registered: look at all, after Told
)

// NextTask implements cma_mapper_take.
func (k Rail) NextTask() (Task, bool) {
	c := C.cma_mapper_take(k.c)
	if c == nil {
		return Task{}, false
	}
	t := Task{What: int(c.what), c: c}
	switch t.What {
	case TaskBegin, TaskEnd:
		t.In = Import{C.cma_task_import(c)}
	case TaskViewBegin:
		t.View = View{(*C.cma_view)(unsafe.Add(unsafe.Pointer(c), -int(unsafe.Offsetof(C.cma_view{}.begin))))}
	case TaskViewEnd:
		t.View = View{(*C.cma_view)(unsafe.Add(unsafe.Pointer(c), -int(unsafe.Offsetof(C.cma_view{}.end))))}
	}
	return t, true
}

// TasksAsked is the number of tasks added so far. Implements cma_mapper_asked.
func (k Rail) TasksAsked() uint64 { return uint64(C.cma_mapper_asked(k.c)) }

// MakePair implements cma_pair_make.
func (k Rail) MakePair(t Task) { C.cma_pair_make(k.c, t.c) }

// Import is a peer's region, mapped for one of our GPUs. C owns it until Free.
type Import struct{ c *C.cma_import }

// ImportInfo has what the mapper needs to know of an import.
type ImportInfo struct {
	Share        gpu.Share
	Self         bool // memory of this process
	Device, Peer int  // our GPU; the GPU that has the memory, in our numbering
	Why          gpu.Why
	Key          uint64
	Owner        ipc.MemoryOwner
}

// Info copies the peer's description of an import.
func (k Rail) Info(i Import) ImportInfo {
	c := i.c
	return ImportInfo{
		Share: *(*gpu.Share)(unsafe.Pointer(&c.share)), Self: c.self != 0, Device: int(c.device), Why: gpu.Why(c.why), Key: uint64(c.key),
		Owner: k.owner(unsafe.Pointer(&c.server_token), unsafe.Pointer(&c.server_place), c.pid),
	}
}

func (k Rail) owner(token, place unsafe.Pointer, pid C.pid_t) ipc.MemoryOwner {
	o := ipc.MemoryOwner{Host: k.host, Token: *(*ipc.Token)(token), Pid: int(pid)}
	if p, ok := ipc.Decode(C.GoBytes(place, C.CMA_PLACE)); ok {
		o.Place = &p
	}
	return o
}

// SetPeer sets the GPU that has the memory, in our numbering.
func (i Import) SetPeer(device int) { i.c.peer = C.int(device) }

// Free implements cma_import_free.
func (i Import) Free() { C.cma_import_free(i.c) }

// FinishImport implements cma_import_finish. False: the import failed in spite of the mapping.
func (k Rail) FinishImport(in Import, why gpu.Why, delta uint64) bool {
	return C.cma_import_finish(k.c, in.c, C.int(why), C.uint64_t(delta)) == C.int(why)
}

// Abandon implements cma_import_abandon.
func (k Rail) Abandon() { C.cma_import_abandon(k.c) }

// ---- views: peers' host memory, mapped here ----

// View is a region of a peer whose file is mapped here. C owns it until FreeView.
type View struct{ c *C.cma_view }

// ViewInfo has what the mapper needs to know of a view.
type ViewInfo struct {
	Key, Length uint64
	Owner       ipc.MemoryOwner
}

// ViewInfo copies the description of a view.
func (k Rail) ViewInfo(v View) ViewInfo {
	c := v.c
	return ViewInfo{Key: uint64(c.key), Length: uint64(c.len),
		Owner: k.owner(unsafe.Pointer(&c.server_token), unsafe.Pointer(&c.server_place), c.pid)}
}

// Finish ends the request of a view: the region is mapped at that address. nil: it is not, and the ring serves. Then the next post after
// `retry` makes another view; 0: none does.
func (v View) Finish(at unsafe.Pointer, writable bool, file FileID, retry time.Duration) {
	w := C.int(0)
	if writable {
		w = 1
	}
	C.cma_finish_view(v.c, (*C.uint8_t)(at), w, C.uint64_t(file.Dev), C.uint64_t(file.Inode), C.uint64_t(file.Offset), C.uint64_t(retry.Milliseconds()))
}

// FileID names a file on this host, and a place in it. Dev is major << 32 | minor.
type FileID struct{ Dev, Inode, Offset uint64 }

// FreeView frees a view after its end task. The caller has unmapped the memory.
func (k Rail) FreeView(v View) { C.cma_free_view(k.c, v.c) }

// Viewed is the number of bytes that were copied through views.
func (k Rail) Viewed() uint64 { return uint64(C.cma_viewed(k.c)) }

// ForgetView implements cma_view_drop.
func (p Endpoint) ForgetView(key uint64) { C.cma_view_drop(p.c, C.uint64_t(key)) }
