package shm

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

// use is told of the driver with each region of a GPU: it is the same.
func (k core) use(d *gpu.Driver) {
	k.loaded.Store(d)
	C.lc_set_gpu(k.c, d.Core())
}

func (k core) driver() *gpu.Driver { return k.loaded.Load() }

// mapping says whether a peer's memory is being mapped.
func (k core) mapping() bool { return C.lc_mapping(k.c) != 0 }

// trouble is why memory could not be reached, last. Implements lc_trouble_text.
func (k core) trouble() string {
	const room = 512
	text := (*C.char)(C.calloc(1, room))
	defer C.free(unsafe.Pointer(text))
	C.lc_trouble_text(k.c, text, room)
	return C.GoString(text)
}

// newDesc is what the core has as the descriptor of a region of that GPU; C's memory.
func newDesc(device int) (unsafe.Pointer, error) {
	v := (*C.lc_vram)(C.calloc(1, C.sizeof_lc_vram))
	if v == nil {
		return nil, errors.New("out of memory")
	}
	v.device = C.int(device)
	return unsafe.Pointer(v), nil
}

func freeDesc(desc unsafe.Pointer) { C.free(desc) }

// setTrouble implements lc_trouble_set.
func (k core) setTrouble(text string) {
	c := C.CString(text)
	defer C.free(unsafe.Pointer(c))
	C.lc_trouble_set(k.c, c)
}

// ---- what posts ask of the mapper ----

// task of the mapper's; in: what it is about, but for a pair.
type task struct {
	what int
	in   importRef
	c    *C.lc_task
}

const (
	taskBegin = C.LC_BEGIN
	taskEnd   = C.LC_END
)

// nextTask implements lc_mapper_take.
func (k core) nextTask() (task, bool) {
	c := C.lc_mapper_take(k.c)
	if c == nil {
		return task{}, false
	}
	t := task{what: int(c.what), c: c}
	if t.what == taskBegin || t.what == taskEnd {
		t.in = importRef{C.lc_task_import(c)}
	}
	return t, true
}

// tasksAsked is how many there were, ever. Implements lc_mapper_asked.
func (k core) tasksAsked() uint64 { return uint64(C.lc_mapper_asked(k.c)) }

// makePair implements lc_pair_make.
func (k core) makePair(t task) { C.lc_pair_make(k.c, t.c) }

// importRef is a peer's region for a GPU of ours: C's, until free.
type importRef struct{ c *C.lc_import }

// importInfo is what is known of it.
type importInfo struct {
	share        gpu.Share
	self         bool // memory of this very process
	device, peer int  // GPUs: ours, and the memory's
	why          gpu.Why
	key          uint64
	owner        descriptors.Owner
}

func (i importRef) info() importInfo {
	c := i.c
	return importInfo{
		share: *(*gpu.Share)(unsafe.Pointer(&c.share)), self: c.self != 0, device: int(c.device), why: gpu.Why(c.why), key: uint64(c.key),
		owner: descriptors.Owner{Name: C.GoBytes(unsafe.Pointer(&c.feed_name), C.int(c.feed_len)), Token: *(*descriptors.Token)(unsafe.Pointer(&c.feed_token)),
			Pid: int(c.share.pad)},
	}
}

func (i importRef) setPeer(device int) { i.c.peer = C.int(device) }
func (i importRef) free()              { C.lc_import_free(i.c) }

// settle implements lc_import_settle: false where it is not there all the same.
func (k core) settle(in importRef, why gpu.Why, delta uint64) bool {
	return C.lc_import_settle(k.c, in.c, C.int(why), C.uint64_t(delta)) == C.int(why)
}

// abandon implements lc_import_abandon.
func (k core) abandon() { C.lc_import_abandon(k.c) }
