package libfabric

/*
#include <stdlib.h>
#include "ofi.h"
*/
import "C"

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
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

// MaxSegments of an operation, whatever the device takes.
const MaxSegments = C.GR_MAX_IOV

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

// hold runs f with the rail's lock.
func hold(rail *coreRail, f func()) {
	runtime.LockOSThread() // whose the lock is
	defer runtime.UnlockOSThread()
	C.gr_rail_lock(&rail.base)
	defer C.gr_rail_unlock(&rail.base)
	f()
}

func pass(rail *coreRail)                { C.ofi_rail_pass(rail) }
func progress(rail *coreRail, times int) { C.ofi_rail_progress(rail, C.uint(times)) }

// shutFilter and turnAway are accept_filter.c's; under hold.
func shutFilter(rail *coreRail, ep *coreEP) { C.ofi_filter_shut(rail, ep) }
func turnAway(rail *coreRail, fd int)       { C.ofi_filter_turn_away(rail, C.int(fd)) }

// What follows is setup.c's, and takes the lock.

// insert gives libfabric's code.
func insert(rail *coreRail, addr []byte) (at fiAddr, rc int) {
	var room [MaxAddr]byte // libfabric never reads behind the peer's bytes
	copy(room[:], addr)
	rc = int(C.ofi_av_insert(rail, unsafe.Pointer(&room[0]), &at))
	return at, rc
}

func point(rail *coreRail, ep *coreEP, at fiAddr) { C.ofi_ep_point(rail, ep, at) }

func admit(rail *coreRail, ep *coreEP, filter []unix.SockFilter) syscall.Errno {
	first := (*C.struct_sock_filter)(unsafe.Pointer(unsafe.SliceData(filter)))
	return syscall.Errno(-C.ofi_filter_admit(rail, ep, first, C.ushort(len(filter))))
}

func endFilter(rail *coreRail, ep *coreEP) (unswept bool) { return C.ofi_filter_end(rail, ep) != 0 }
func unswept(rail *coreRail, ep *coreEP) bool             { return C.ofi_filter_unswept(rail, ep) != 0 }
func swept(rail *coreRail, ep *coreEP)                    { C.ofi_filter_swept(rail, ep) }
func turnedAway(rail *coreRail) uint64                    { return uint64(C.ofi_filter_turned_away(rail)) }

// closeRail gives the first of libfabric's codes; done is false, and nothing has changed, while endpoints or regions are open.
func closeRail(rail *coreRail, endpoints int) (done bool, regions, rc int) {
	var n C.uint32_t
	var code C.int
	done = C.ofi_rail_close(rail, C.uint32_t(endpoints), &n, &code) != 0
	return done, int(n), int(code)
}

// Memory is a range to be registered.
type Memory struct {
	Addr, Length uint64
	Key          uint64 // of host memory, where the provider does not choose it
	GPU          bool   // memory of a device, named by address (DMABuf -1) or as a part of a dmabuf
	Device       int
	DMABuf       int
	Offset       uint64
}

// openMR and closeMR are mr.c's. They take the lock.
func openMR(rail *coreRail, m Memory) (mr *fiMR, key uint64, desc unsafe.Pointer, rc int) {
	in := C.ofi_range{addr: C.uint64_t(m.Addr), len: C.uint64_t(m.Length), key: C.uint64_t(m.Key), gpu: flag(m.GPU),
		device: C.int(m.Device), dmabuf: C.int(m.DMABuf), offset: C.uint64_t(m.Offset)}
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
