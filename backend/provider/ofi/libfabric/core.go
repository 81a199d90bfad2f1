package libfabric

/*
#include <stdlib.h>
#include "ofi.h"
*/
import "C"

import (
	"runtime"
	"unsafe"

	"gorail/backend/option"
)

// C memory that the core posts to and polls, its lock, and the C functions that use it.

type (
	coreRail = C.ofi_rail // begins with a gr_rail
	coreEP   = C.ofi_ep

	cInt    = C.int
	cUint8  = C.uint8_t
	cUint32 = C.uint32_t
	cUint64 = C.uint64_t
)

// MaxSegments is the maximum number of segments of an operation, for all devices.
const MaxSegments = C.GR_MAX_IOV

// newCoreRail returns nil if out of memory.
func newCoreRail() *coreRail      { return C.ofi_rail_new() }
func freeCoreRail(rail *coreRail) { C.ofi_rail_free(rail) }

// newCoreEP returns nil if out of memory.
func newCoreEP() *coreEP    { return C.ofi_ep_new() }
func freeCoreEP(ep *coreEP) { C.free(unsafe.Pointer(ep)) }

// share makes ep the shared endpoint of the rail.
func share(rail *coreRail, ep *fiEP) {
	rail.shared, rail.any.ep = ep, ep
	rail.base.shared_ep = unsafe.Pointer(&rail.any)
}

// hold runs f with the rail's lock.
func hold(rail *coreRail, f func()) {
	runtime.LockOSThread() // the lock belongs to the thread
	defer runtime.UnlockOSThread()
	C.gr_rail_lock(&rail.base)
	defer C.gr_rail_unlock(&rail.base)
	f()
}

// The following functions are in setup.c and take the lock.

// insert returns libfabric's code.
func insert(rail *coreRail, addr []byte) (at fiAddr, rc int) {
	var room [MaxAddr]byte // libfabric never reads beyond the bytes of the address
	copy(room[:], addr)
	rc = int(C.ofi_av_insert(rail, unsafe.Pointer(&room[0]), &at))
	return at, rc
}

func setPeer(rail *coreRail, ep *coreEP, at fiAddr) { C.ofi_ep_set_peer(rail, ep, at) }

// closeRail returns the first error code of libfabric. While endpoints or regions are open it changes nothing, and done
// is false.
func closeRail(rail *coreRail, endpoints int) (done bool, regions, rc int) {
	var n C.uint32_t
	var code C.int
	done = C.ofi_rail_close(rail, C.uint32_t(endpoints), &n, &code) != 0
	return done, int(n), int(code)
}

// Memory is a range to register.
type Memory struct {
	Addr, Length uint64
	Key          uint64 // of host memory, if the provider does not choose keys
	GPU          bool   // GPU memory, by address (DMABuf -1) or as a part of a dmabuf
	Device       int
	DMABuf       int
	Offset       uint64
	Peers        option.Rights
}

// openMR and closeMR are in mr.c. They take the lock.
func openMR(rail *coreRail, m Memory) (mr *fiMR, key uint64, desc unsafe.Pointer, rc int) {
	in := C.ofi_range{addr: C.uint64_t(m.Addr), len: C.uint64_t(m.Length), key: C.uint64_t(m.Key), gpu: flag(m.GPU),
		device: C.int(m.Device), dmabuf: C.int(m.DMABuf), offset: C.uint64_t(m.Offset),
		peers_read: flag(m.Peers.Allow(option.PeersRead)), peers_write: flag(m.Peers.Allow(option.PeersWrite))}
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
