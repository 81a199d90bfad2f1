package cma

/*
#include <stdlib.h>
#include "cma.h"

static int cma_mapping(cma_rail *rail) { return atomic_load(&rail->mapper.opening) != 0; }
static void cma_set_gpu(cma_rail *rail, void *gpu) { atomic_store(&rail->gpu.driver, (gr_gpu *)gpu); }
*/
import "C"

import (
	"errors"
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/provider/shm/descriptors"
)

// Use is told of the driver with each region of a GPU: it is the same.
func (k Rail) Use(d *gpu.Driver) {
	k.loaded.Store(d)
	C.cma_set_gpu(k.c, d.Core())
}

// Driver is that one; nil: there is none yet.
func (k Rail) Driver() *gpu.Driver { return k.loaded.Load() }

// Mapping says whether a peer's memory is being mapped.
func (k Rail) Mapping() bool { return C.cma_mapping(k.c) != 0 }

// LastError is why memory could not be reached, last. Implements cma_last_error.
func (k Rail) LastError() string {
	const room = 512
	text := (*C.char)(C.calloc(1, room))
	defer C.free(unsafe.Pointer(text))
	C.cma_last_error(k.c, text, room)
	return C.GoString(text)
}

// NewDesc is what the core has as the descriptor of a region of that GPU; C's memory.
func NewDesc(device int) (unsafe.Pointer, error) {
	v := (*C.cma_vram)(C.calloc(1, C.sizeof_cma_vram))
	if v == nil {
		return nil, errors.New("out of memory")
	}
	v.device = C.int(device)
	return unsafe.Pointer(v), nil
}

// FreeDesc is its end.
func FreeDesc(desc unsafe.Pointer) { C.free(desc) }

// SetLastError implements cma_set_last_error.
func (k Rail) SetLastError(text string) {
	c := C.CString(text)
	defer C.free(unsafe.Pointer(c))
	C.cma_set_last_error(k.c, c)
}

// ---- what posts ask of the mapper ----

// Task of the mapper's.
type Task struct {
	What int    // TaskBegin, TaskEnd, or to make a pair
	In   Import // what it is about, but for a pair
	c    *C.cma_task
}

// What tasks are for.
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

// TasksAsked is how many there were, ever. Implements cma_mapper_asked.
func (k Rail) TasksAsked() uint64 { return uint64(C.cma_mapper_asked(k.c)) }

// MakePair implements cma_pair_make.
func (k Rail) MakePair(t Task) { C.cma_pair_make(k.c, t.c) }

// Import is a peer's region for a GPU of ours: C's, until Free.
type Import struct{ c *C.cma_import }

// ImportInfo is what is known of it.
type ImportInfo struct {
	Share        gpu.Share
	Self         bool // memory of this very process
	Device, Peer int  // GPUs: ours, and the memory's
	Why          gpu.Why
	Key          uint64
	Owner        descriptors.Owner
}

// Info is what its peer says.
func (i Import) Info() ImportInfo {
	c := i.c
	return ImportInfo{
		Share: *(*gpu.Share)(unsafe.Pointer(&c.share)), Self: c.self != 0, Device: int(c.device), Why: gpu.Why(c.why), Key: uint64(c.key),
		Owner: descriptors.Owner{Name: C.GoBytes(unsafe.Pointer(&c.server_name), C.int(c.server_name_len)), Token: *(*descriptors.Token)(unsafe.Pointer(&c.server_token)),
			Pid: int(c.share.pad)},
	}
}

// SetPeer says which GPU the memory is of, as we number it.
func (i Import) SetPeer(device int) { i.c.peer = C.int(device) }

// Free implements cma_import_free.
func (i Import) Free() { C.cma_import_free(i.c) }

// FinishImport implements cma_import_finish: false where it is not there all the same.
func (k Rail) FinishImport(in Import, why gpu.Why, delta uint64) bool {
	return C.cma_import_finish(k.c, in.c, C.int(why), C.uint64_t(delta)) == C.int(why)
}

// Abandon implements cma_import_abandon.
func (k Rail) Abandon() { C.cma_import_abandon(k.c) }
