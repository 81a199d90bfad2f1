package core

// #include "gr_policy.h"
import "C"

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// MaxNotif is the largest notification in bytes.
const MaxNotif = C.GR_MAX_NOTIF

func (x Xfer) cached() *uint32 { return (*uint32)(unsafe.Pointer(&x.x.cached)) }

// CachePost allows gr_repost: the application's threads may post the transfer again without Go, over the links of its last
// post. The last post must have ended well.
func (x Xfer) CachePost() { atomic.StoreUint32(x.cached(), C.GR_CACHED_VALID) }

// HasCachedPost reports whether the transfer may be posted without Go.
func (x Xfer) HasCachedPost() bool { return atomic.LoadUint32(x.cached()) != C.GR_CACHED_NONE }

// Reposts is how often the transfer was posted without Go.
func (x Xfer) Reposts() uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&x.x.reposts)))
}

// PostWait bounds the wait for a post that is in progress in C. Such a post takes microseconds, unless its thread is not scheduled, or
// sits in a system call: process_vm_writev waits for memory behind userfaultfd or FUSE without limit.
const PostWait = 100 * time.Millisecond

// DropCachedPost withdraws the permission of CachePost. It waits for a post that is in progress in C, for PostWait at most. False: the post
// goes on. It takes only the core's locks, so the caller may hold any locks of its own.
func (x Xfer) DropCachedPost() bool { return x.DropCachedPostBy(time.Now().Add(PostWait)) }

// DropCachedPostBy is DropCachedPost with a time at which its wait ends.
func (x Xfer) DropCachedPostBy(until time.Time) bool {
	for i := 0; ; i++ {
		switch atomic.LoadUint32(x.cached()) {
		case C.GR_CACHED_NONE:
			return true
		case C.GR_CACHED_VALID:
			atomic.CompareAndSwapUint32(x.cached(), C.GR_CACHED_VALID, C.GR_CACHED_NONE)
			continue
		case C.GR_CACHED_IN_USE:
			atomic.CompareAndSwapUint32(x.cached(), C.GR_CACHED_IN_USE, C.GR_CACHED_REVOKED)
		}
		switch {
		case i < 100:
			runtime.Gosched()
		case time.Now().After(until):
			return false
		default:
			time.Sleep(10 * time.Microsecond) // the posting thread is not running now
		}
	}
}

// Posting reports that a post is in progress in C.
func (x Xfer) Posting() bool { return atomic.LoadUint32(x.cached()) > C.GR_CACHED_VALID }

// Repost posts the transfer again. taken is false if the post must go through Go. result is 0 or 1 (in progress).
// Implements gr_repost, which the shim calls without Go; this method is for tests and Go programs.
func (k *Core) Repost(slot unsafe.Pointer, handle uint64, hasNotif bool, msg []byte) (result int32, taken bool) {
	has := C.int(0)
	if hasNotif {
		has = 1
	}
	rc := C.gr_repost(k.c, (*C.gr_xfer)(slot), C.uint64_t(handle), has, bytesPtr(msg), C.size_t(len(msg)))
	return int32(rc), rc != C.GR_NOT_TAKEN
}
