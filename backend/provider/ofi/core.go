package ofi

/*
#include <stdlib.h>
#include "ofi.h"
*/
import "C"

import (
	"runtime"
	"unsafe"
)

// The C memory that the core posts to and polls, its lock, and what is done in C with it.

type (
	coreRail = C.ofi_rail // begins with a gr_rail
	coreEP   = C.ofi_ep

	cSize   = C.size_t
	cInt    = C.int
	cUint8  = C.uint8_t
	cUint32 = C.uint32_t
	cUint64 = C.uint64_t
)

const (
	maxIOV  = C.GR_MAX_IOV
	maxAddr = 256 // bytes of an endpoint's address
)

// newCoreRail is nil without memory. freeCoreRail closes its reserve, and nothing else.
func newCoreRail() *coreRail      { return C.ofi_rail_new() }
func freeCoreRail(rail *coreRail) { C.ofi_rail_free(rail) }

// newCoreEP is nil without memory.
func newCoreEP() *coreEP    { return C.ofi_ep_new() }
func freeCoreEP(ep *coreEP) { C.free(unsafe.Pointer(ep)) }

// share makes ep the endpoint of all peers.
func share(rail *coreRail, ep *fiEP) {
	rail.shared, rail.any.ep = ep, ep
	rail.base.shared_ep = unsafe.Pointer(&rail.any)
}

// hold runs f with the rail's lock: nobody posts or polls meanwhile, and libfabric opens and closes no descriptor of the rail's. The
// lock is a thread's, so the goroutine stays on its own. f waits for no other goroutine: the core waits for f.
func (r *rail) hold(f func()) {
	r.setup.Lock()
	defer r.setup.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	C.gr_rail_lock(&r.c.base)
	defer C.gr_rail_unlock(&r.c.base)
	f()
}

// pass returns when no poll is under way that had begun before.
func pass(rail *coreRail) { C.ofi_rail_pass(rail) }

// progress lets libfabric look at its sockets, `times` times; under hold.
func progress(rail *coreRail, times int) { C.ofi_rail_progress(rail, C.uint(times)) }

// openDoor, shutDoor and turnAway are door.c's; under hold.
func openDoor(rail *coreRail, ep *coreEP) { C.ofi_door_open(rail, ep) }
func shutDoor(rail *coreRail, ep *coreEP) { C.ofi_door_shut(rail, ep) }
func turnAway(rail *coreRail, fd int)     { C.ofi_door_turn_away(rail, C.int(fd)) }

// memory is a range to be registered.
type memory struct {
	addr, length uint64
	key          uint64 // of host memory, where the provider does not choose it
	gpu          bool   // memory of a device, named by address (dmabuf -1) or as a part of a dmabuf
	device       int
	dmabuf       int
	offset       uint64
}

// openMR implements fi_mr_regattr, and fi_mr_bind and fi_mr_enable where regions belong to the endpoint. Takes the lock; so does closeMR.
func openMR(rail *coreRail, m memory) (mr *fiMR, key uint64, desc unsafe.Pointer, rc int) {
	in := C.ofi_range{addr: C.uint64_t(m.addr), len: C.uint64_t(m.length), key: C.uint64_t(m.key), gpu: flag(m.gpu),
		device: C.int(m.device), dmabuf: C.int(m.dmabuf), offset: C.uint64_t(m.offset)}
	var out C.uint64_t
	rc = int(C.ofi_mr_open(rail, &in, &mr, &out, &desc))
	return mr, uint64(out), desc, rc
}

func closeMR(rail *coreRail, mr *fiMR) int { return int(C.ofi_mr_close(rail, mr)) }

func flag(b bool) cUint8 {
	if b {
		return 1
	}
	return 0
}
