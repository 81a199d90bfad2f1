package core

// #include "gr_policy.h"
import "C"

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Operation kinds of a transfer: nixl_xfer_op_t.
const (
	Write = C.GR_WRITE
	Read  = C.GR_READ
)

// Xfer is a transfer slot in C memory. Slots are recycled, and not unmapped while the core lives.
type Xfer struct{ x *C.gr_xfer }

// Heap is the rail of operations that no rail's memory holds.
const Heap = -1

// NewXfer takes a slot with room for nops operations, in the memory of a rail with bulk transfers, or on the Heap.
func (k *Core) NewXfer(handle uint64, op int, nops uint64, rail int) (Xfer, error) {
	x := C.gr_xfer_new(k.c, C.uint64_t(handle), C.int(op), C.uint64_t(nops), C.int(rail))
	if x == nil {
		return Xfer{}, syscall.ENOMEM
	}
	return Xfer{x}, nil
}

// Resize makes room for nops operations in the memory of that rail, and keeps the first used ones. The core has nothing of the transfer.
// Error: ENOMEM; then nothing has changed.
func (k *Core) Resize(x Xfer, used, nops, rail int) error {
	if C.gr_xfer_resize(k.c, x.x, C.uint64_t(used), C.uint64_t(nops), C.int(rail)) != 0 {
		return syscall.ENOMEM
	}
	return nil
}

// FreeXfer frees the slot. Only when the transfer is not running.
func (k *Core) FreeXfer(x Xfer) { C.gr_xfer_free(k.c, x.x) }

// Pointer returns the slot for gr_check.
func (x Xfer) Pointer() unsafe.Pointer { return unsafe.Pointer(x.x) }

// Ops returns the operations, in C memory.
func (x Xfer) Ops() []Op {
	return unsafe.Slice((*Op)(unsafe.Pointer(x.x.ops)), int(x.x.nops))
}

func (x Xfer) state() *int32 { return (*int32)(unsafe.Pointer(&x.x.state)) }

// Start marks the transfer running. From then on the application sees "in progress".
func (x Xfer) Start() { atomic.StoreInt32(x.state(), C.GR_XFER_RUNNING) }

// Running reports whether the core or a queue of Go still has the transfer. A failed transfer that Go must still finalize
// is not running.
func (x Xfer) Running() bool {
	s := atomic.LoadInt32(x.state())
	return s > 0 && s&0xff == C.GR_XFER_RUNNING
}

// NeedsFinalize reports whether the transfer has ended with an error and waits for Finalize.
func (x Xfer) NeedsFinalize() bool {
	s := atomic.LoadInt32(x.state())
	return s > 0 && s&0xff == C.GR_XFER_FAILED
}

// Failed reports whether the last run ended in an error.
func (x Xfer) Failed() bool { return atomic.LoadInt32(x.state()) < 0 }

// Status is the status for the application: 1 in progress, 0 or an error.
func (x Xfer) Status() int32 { return min(atomic.LoadInt32(x.state()), 1) }

// Want asks for an event at the end. false: the transfer has already ended and no event will come for this call.
func (x Xfer) Want() bool {
	for {
		s := atomic.LoadInt32(x.state())
		if s <= 0 || s&0xff != C.GR_XFER_RUNNING {
			return false
		}
		if atomic.CompareAndSwapInt32(x.state(), s, s|C.GR_XFER_WANT) {
			return true
		}
	}
}

// Finalize sets the final status for the application: 0 or a negative nixl_status_t.
func (x Xfer) Finalize(status int32) { atomic.StoreInt32(x.state(), status) }

// Err returns the negative status that ended the transfer, and the errno behind it.
func (x Xfer) Err() (status int32, wire syscall.Errno) {
	return atomic.LoadInt32((*int32)(unsafe.Pointer(&x.x.err))), syscall.Errno(atomic.LoadInt32((*int32)(unsafe.Pointer(&x.x.wire_err))))
}

// Hold marks the transfer ended with an error that waits for Finalize, as the core does.
func (x Xfer) Hold() { atomic.StoreInt32(x.state(), C.GR_XFER_FAILED) }

// InFlight reports whether the core has the transfer with data still to move: memory of either side is in use.
func (x Xfer) InFlight() bool {
	return x.Running() && atomic.LoadUint32((*uint32)(unsafe.Pointer(&x.x.subs_left))) > 0
}

// LastProgress is the time of the last completion, on the clock of Now.
func (x Xfer) LastProgress() time.Duration {
	return time.Duration(atomic.LoadUint64((*uint64)(unsafe.Pointer(&x.x.last_ns))))
}

// Posted is the time of the last post, on the clock of Now; 0: never posted.
func (x Xfer) Posted() time.Duration {
	return time.Duration(atomic.LoadUint64((*uint64)(unsafe.Pointer(&x.x.posted_ns))))
}

// Took returns the time from the post to the last completion. exact: the times come from the clock, not from the core's
// coarse time.
func (x Xfer) Took() (d time.Duration, exact bool) {
	exact = atomic.LoadUint32((*uint32)(unsafe.Pointer(&x.x.coarse))) == 0
	last := x.LastProgress() // read first: if a new round begins now, the difference is zero or negative
	return last - x.Posted(), exact
}

// Prove makes signaled WRITEs flushed WRITEs, since the work that follows takes another way than a notification. Before the post.
func (x Xfer) Prove() { C.gr_xfer_prove(x.x) }

// Unposted reports whether the transfer runs and has nothing posted yet; a hint. The transfer must not be posted meanwhile.
func (x Xfer) Unposted() bool { return C.gr_xfer_unposted(x.x) != 0 }

// Message returns the notification of the last post. !ok: parts of it may have gone out.
func (x Xfer) Message() (has bool, msg []byte, ok bool) {
	var body unsafe.Pointer
	var n C.uint64_t
	switch C.gr_xfer_message(x.x, &body, &n) {
	case 0:
		return false, nil, true
	case 1:
		return true, C.GoBytes(body, C.int(n)), true
	}
	return true, nil, false
}

// Done returns how many bytes have completed since the post.
func (x Xfer) Done() uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&x.x.done))) }

// MaxLinks is the largest number of links of a session.
const MaxLinks = C.GR_MAX_LINKS

// SetPlan sets the number of operations that are filled in, at most as many as there is room for, and their bytes. The core has
// nothing of the transfer.
func (x Xfer) SetPlan(ops int, bytes uint64) {
	x.x.nops, x.x.bytes = C.uint64_t(ops), C.uint64_t(bytes)
}

// Bulk makes the transfer one bulk post on the rail whose memory holds its operations. local and remote list the numbers of the
// regions that they use, in place of those before. The core has nothing of the transfer. Error: ENOMEM; then nothing has changed.
func (x Xfer) Bulk(local, remote []uint32) error {
	if C.gr_xfer_bulk(x.x, (*C.uint32_t)(&local[0]), C.uint32_t(len(local)), (*C.uint32_t)(&remote[0]), C.uint32_t(len(remote))) != 0 {
		return syscall.ENOMEM
	}
	return nil
}

// Post starts the transfer on links of one session, after Start. The first near links are near the local memory and
// preferred; 0: none or unknown. One call into C at any size. msg is copied.
func (k *Core) Post(x Xfer, links []Link, near int, hasNotif bool, msg []byte) {
	has := C.int(0)
	if hasNotif {
		has = 1
	}
	C.gr_xfer_post(k.c, x.x, (**C.gr_link)(unsafe.Pointer(&links[0])), C.uint32_t(len(links)), C.uint32_t(near), has,
		bytesPtr(msg), C.size_t(len(msg)))
}

// Join lets a link that has come up since the post take batches of the transfer.
func (k *Core) Join(x Xfer, l Link) { C.gr_xfer_join(k.c, x.x, l.l) }

// Share returns how many bytes a link has moved since the post.
func (x Xfer) Share(l Link) uint64 { return uint64(C.gr_xfer_share(x.x, l.l)) }

// Abort drops unposted operations. true: the transfer has ended. false: an event will come when the posted operations have
// completed.
func (k *Core) Abort(x Xfer, status int32) bool {
	return C.gr_xfer_abort(k.c, x.x, C.int(status)) != 0
}

// AbortUnposted is Abort, unless all operations are posted: then the transfer completes normally.
func (k *Core) AbortUnposted(x Xfer, status int32) bool {
	return C.gr_xfer_abort_unposted(k.c, x.x, C.int(status)) != 0
}

// Posted reports whether an aborted transfer has operations in flight on the link, or with the zero Link on any link: our
// memory is in use. The transfer must not be posted meanwhile.
func (k *Core) Posted(x Xfer, l Link) bool { return C.gr_xfer_posted(k.c, x.x, l.l) != 0 }

// Wait makes progress until the transfer has ended or d has passed. true: it has ended.
func (k *Core) Wait(x Xfer, d time.Duration) bool {
	return C.gr_xfer_wait(k.c, x.x, C.uint64_t(d)) != 0
}
