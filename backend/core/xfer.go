package core

// #include "gr_policy.h"
import "C"

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Op of a transfer: nixl_xfer_op_t.
const (
	Write = C.GR_WRITE
	Read  = C.GR_READ
)

// OpSize is the size of an operation in bytes: gr_op.
const OpSize = C.sizeof_gr_op

// Xfer is a transfer slot in C memory; the slot is recycled, never unmapped, while the core lives.
type Xfer struct{ x *C.gr_xfer }

// NewXfer takes a slot with room for nops operations.
func (k *Core) NewXfer(handle uint64, op int, nops uint64) (Xfer, error) {
	x := C.gr_xfer_new(k.c, C.uint64_t(handle), C.int(op), C.uint64_t(nops))
	if x == nil {
		return Xfer{}, syscall.ENOMEM
	}
	return Xfer{x}, nil
}

// FreeXfer gives the slot back; only when it is not running.
func (k *Core) FreeXfer(x Xfer) { C.gr_xfer_free(k.c, x.x) }

// Pointer is the slot for gr_check.
func (x Xfer) Pointer() unsafe.Pointer { return unsafe.Pointer(x.x) }

// Ops is the C memory of the operations, gr_op each: of the first one, and how many there are.
func (x Xfer) Ops() (first unsafe.Pointer, n int) {
	return unsafe.Pointer(x.x.ops), int(x.x.nops)
}

func (x Xfer) state() *int32 { return (*int32)(unsafe.Pointer(&x.x.state)) }

// Start marks the transfer running; the application sees "in progress" from here on.
func (x Xfer) Start() { atomic.StoreInt32(x.state(), C.GR_XFER_RUNNING) }

// Running says that the core or a queue of Go's still has it. A failed one that Go has not yet settled is not running.
func (x Xfer) Running() bool {
	s := atomic.LoadInt32(x.state())
	return s > 0 && s&0xff == C.GR_XFER_RUNNING
}

// NeedsFinalize says that it has ended with an error that waits for Finalize.
func (x Xfer) NeedsFinalize() bool {
	s := atomic.LoadInt32(x.state())
	return s > 0 && s&0xff == C.GR_XFER_FAILED
}

// Failed says that the last run ended in an error.
func (x Xfer) Failed() bool { return atomic.LoadInt32(x.state()) < 0 }

// Status is what the application sees: 1 in progress, 0 or an error.
func (x Xfer) Status() int32 { return min(atomic.LoadInt32(x.state()), 1) }

// Want asks for an event at the end; false: it has already ended, none will come for this asking.
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

// Finalize gives the final status that the application sees: 0 or a negative nixl_status_t.
func (x Xfer) Finalize(status int32) { atomic.StoreInt32(x.state(), status) }

// Err is the negative status that ended it, and the errno behind it.
func (x Xfer) Err() (status int32, wire syscall.Errno) {
	return atomic.LoadInt32((*int32)(unsafe.Pointer(&x.x.err))), syscall.Errno(atomic.LoadInt32((*int32)(unsafe.Pointer(&x.x.wire_err))))
}

// Hold ends it with an error that waits for Finalize, as the core does.
func (x Xfer) Hold() { atomic.StoreInt32(x.state(), C.GR_XFER_FAILED) }

// InFlight says that the core has it with data still to move, so that memory of either side is in use.
func (x Xfer) InFlight() bool {
	return x.Running() && atomic.LoadUint32((*uint32)(unsafe.Pointer(&x.x.subs_left))) > 0
}

// LastProgress is the time of its last completion, on the clock of Now.
func (x Xfer) LastProgress() time.Duration {
	return time.Duration(atomic.LoadUint64((*uint64)(unsafe.Pointer(&x.x.last_ns))))
}

// Posted is when it was last posted, on the same clock; 0: never.
func (x Xfer) Posted() time.Duration {
	return time.Duration(atomic.LoadUint64((*uint64)(unsafe.Pointer(&x.x.posted_ns))))
}

// Took is the time from the post to the last completion; exact: not by the core's tick.
func (x Xfer) Took() (d time.Duration, exact bool) {
	exact = atomic.LoadUint32((*uint32)(unsafe.Pointer(&x.x.coarse))) == 0
	last := x.LastProgress() // first: of a round that begins just now it is nothing or less
	return last - x.Posted(), exact
}

// Prove has the ends of its WRITEs proved, for what comes after it goes another way than a notification. Before it is posted.
func (x Xfer) Prove() { C.gr_xfer_prove(x.x) }

// Unposted says that it runs and that nothing of it is posted yet; a hint. Nobody posts it meanwhile.
func (x Xfer) Unposted() bool { return C.gr_xfer_unposted(x.x) != 0 }

// Message is the notification of the last post; !ok: some of it has gone out.
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

// Done is how many bytes have completed since the post.
func (x Xfer) Done() uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&x.x.done))) }

// MaxLinks is how many links a session may have.
const MaxLinks = C.GR_MAX_LINKS

// SetBytes notes the bytes of all operations; once, with the operations.
func (x Xfer) SetBytes(n uint64) { x.x.bytes = C.uint64_t(n) }

// Bulk makes the transfer one post of a rail's; its operations are filled in, and move. The regions, by their numbers, are those that they
// name. ENOMEM.
func (k *Core) Bulk(x Xfer, rail int, local, remote []uint32) error {
	if C.gr_xfer_bulk(k.c, x.x, C.int(rail), (*C.uint32_t)(&local[0]), C.uint32_t(len(local)), (*C.uint32_t)(&remote[0]), C.uint32_t(len(remote))) != 0 {
		return syscall.ENOMEM
	}
	return nil
}

// Post starts the transfer on links of one session; the caller has called Start. The first near links are near the local
// memory and preferred; 0: none, or nobody knows. One crossing at any size. msg is copied.
func (k *Core) Post(x Xfer, links []Link, near int, hasNotif bool, msg []byte) {
	has := C.int(0)
	if hasNotif {
		has = 1
	}
	C.gr_xfer_post(k.c, x.x, (**C.gr_link)(unsafe.Pointer(&links[0])), C.uint32_t(len(links)), C.uint32_t(near), has,
		bytesPtr(msg), C.size_t(len(msg)))
}

// Join lets a link take part that has come up since the post.
func (k *Core) Join(x Xfer, l Link) { C.gr_xfer_join(k.c, x.x, l.l) }

// Share is how many bytes a link has moved since the post.
func (x Xfer) Share(l Link) uint64 { return uint64(C.gr_xfer_share(x.x, l.l)) }

// Abort drops what is not posted. True: it has ended; false: an event will come when what is posted has drained.
func (k *Core) Abort(x Xfer, status int32) bool {
	return C.gr_xfer_abort(k.c, x.x, C.int(status)) != 0
}

// AbortUnposted is Abort, unless everything is posted already: then it is left to complete.
func (k *Core) AbortUnposted(x Xfer, status int32) bool {
	return C.gr_xfer_abort_unposted(k.c, x.x, C.int(status)) != 0
}

// Posted says that operations of an aborted transfer are posted on the link, or with the zero Link on any, and not completed: our memory is in
// use. Nobody posts it meanwhile.
func (k *Core) Posted(x Xfer, l Link) bool { return C.gr_xfer_posted(k.c, x.x, l.l) != 0 }

// Wait makes progress until the transfer has ended or d has passed; true: ended.
func (k *Core) Wait(x Xfer, d time.Duration) bool {
	return C.gr_xfer_wait(k.c, x.x, C.uint64_t(d)) != 0
}
