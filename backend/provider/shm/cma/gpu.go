package cma

/*
#include <stdlib.h>
#include "cma.h"

static int cma_mapping(cma_rail *rail) { return atomic_load(&rail->mapper.opening) != 0; }
static void cma_set_gpu(cma_rail *rail, void *gpu) { atomic_store(&rail->gpu.driver, (gr_gpu *)gpu); }
*/
import "C"

import (
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/shm/descriptors"
	"gorail/backend/provider/shm/ipc"
)

// Use sets the driver of the GPUs. Each registration of a GPU region calls it, with the same driver.
func (k Rail) Use(d *gpu.Driver) {
	k.loaded.Store(d)
	C.cma_set_gpu(k.c, d.Core())
}

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

// NewDesc makes the core's descriptor for a region of that GPU. C owns the memory.
func NewDesc(device int) (unsafe.Pointer, error) {
	v, err := clib.Zeroed("cma_desc", 1, C.sizeof_cma_vram)
	if err != nil {
		return nil, err
	}
	(*C.cma_vram)(v).device = C.int(device)
	return v, nil
}

// FreeDesc frees a descriptor of NewDesc.
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
	What int    // TaskBegin, TaskEnd, or CMA_PAIR: make a stream and a job
	In   Import // the import; unset for CMA_PAIR
	c    *C.cma_task
}

// Kinds of tasks: map an import, unmap an import.
const (
	TaskBegin = C.CMA_BEGIN
	TaskEnd   = C.CMA_END
)

// NextTask implements cma_mapper_take.
func (k Rail) NextTask() (Task, bool) {
	c := C.cma_mapper_take(k.c)
	if c == nil {
		return Task{}, false
	}
	t := Task{What: int(c.what), c: c}
	if t.What == TaskBegin || t.What == TaskEnd {
		t.In = Import{C.cma_task_import(c)}
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
	Owner        descriptors.Owner
}

// Info copies the peer's description of an import.
func (k Rail) Info(i Import) ImportInfo {
	c := i.c
	return ImportInfo{
		Share: *(*gpu.Share)(unsafe.Pointer(&c.share)), Self: c.self != 0, Device: int(c.device), Why: gpu.Why(c.why), Key: uint64(c.key),
		Owner: k.owner(c),
	}
}

func (k Rail) owner(c *C.cma_import) descriptors.Owner {
	o := descriptors.Owner{Host: k.host, Token: *(*descriptors.Token)(unsafe.Pointer(&c.server_token)), Pid: int(c.pid)}
	if p, ok := ipc.Decode(C.GoBytes(unsafe.Pointer(&c.server_place), C.CMA_PLACE)); ok {
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
