package cma

/*
#include <stdlib.h>
#include "local.h"

static int lc_mapping(lc_rail *rail) { return atomic_load(&rail->mapper.opening) != 0; }
static void lc_set_gpu(lc_rail *rail, void *gpu) { atomic_store(&rail->gpu.driver, (gr_gpu *)gpu); }
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
	C.lc_set_gpu(k.c, d.Core())
}

// Driver is that one; nil: there is none yet.
func (k Rail) Driver() *gpu.Driver { return k.loaded.Load() }

// Mapping says whether a peer's memory is being mapped.
func (k Rail) Mapping() bool { return C.lc_mapping(k.c) != 0 }

// Trouble is why memory could not be reached, last. Implements lc_trouble_text.
func (k Rail) Trouble() string {
	const room = 512
	text := (*C.char)(C.calloc(1, room))
	defer C.free(unsafe.Pointer(text))
	C.lc_trouble_text(k.c, text, room)
	return C.GoString(text)
}

// NewDesc is what the core has as the descriptor of a region of that GPU; C's memory.
func NewDesc(device int) (unsafe.Pointer, error) {
	v := (*C.lc_vram)(C.calloc(1, C.sizeof_lc_vram))
	if v == nil {
		return nil, errors.New("out of memory")
	}
	v.device = C.int(device)
	return unsafe.Pointer(v), nil
}

// FreeDesc is its end.
func FreeDesc(desc unsafe.Pointer) { C.free(desc) }

// SetTrouble implements lc_trouble_set.
func (k Rail) SetTrouble(text string) {
	c := C.CString(text)
	defer C.free(unsafe.Pointer(c))
	C.lc_trouble_set(k.c, c)
}

// ---- what posts ask of the mapper ----

// Task of the mapper's.
type Task struct {
	What int    // TaskBegin, TaskEnd, or to make a pair
	In   Import // what it is about, but for a pair
	c    *C.lc_task
}

// What tasks are for.
const (
	TaskBegin = C.LC_BEGIN
	TaskEnd   = C.LC_END
)

// NextTask implements lc_mapper_take.
func (k Rail) NextTask() (Task, bool) {
	c := C.lc_mapper_take(k.c)
	if c == nil {
		return Task{}, false
	}
	t := Task{What: int(c.what), c: c}
	if t.What == TaskBegin || t.What == TaskEnd {
		t.In = Import{C.lc_task_import(c)}
	}
	return t, true
}

// TasksAsked is how many there were, ever. Implements lc_mapper_asked.
func (k Rail) TasksAsked() uint64 { return uint64(C.lc_mapper_asked(k.c)) }

// MakePair implements lc_pair_make.
func (k Rail) MakePair(t Task) { C.lc_pair_make(k.c, t.c) }

// Import is a peer's region for a GPU of ours: C's, until Free.
type Import struct{ c *C.lc_import }

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
		Owner: descriptors.Owner{Name: C.GoBytes(unsafe.Pointer(&c.feed_name), C.int(c.feed_len)), Token: *(*descriptors.Token)(unsafe.Pointer(&c.feed_token)),
			Pid: int(c.share.pad)},
	}
}

// SetPeer says which GPU the memory is of, as we number it.
func (i Import) SetPeer(device int) { i.c.peer = C.int(device) }

// Free implements lc_import_free.
func (i Import) Free() { C.lc_import_free(i.c) }

// Settle implements lc_import_settle: false where it is not there all the same.
func (k Rail) Settle(in Import, why gpu.Why, delta uint64) bool {
	return C.lc_import_settle(k.c, in.c, C.int(why), C.uint64_t(delta)) == C.int(why)
}

// Abandon implements lc_import_abandon.
func (k Rail) Abandon() { C.lc_import_abandon(k.c) }
