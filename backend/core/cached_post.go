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

// DropCachedPost withdraws the permission of CachePost. It waits for a post that is in progress in C. Such a post takes
// only the core's locks, so the caller may hold any locks of its own.
func (x Xfer) DropCachedPost() {
	for i := 0; x.HasCachedPost() && !atomic.CompareAndSwapUint32(x.cached(), C.GR_CACHED_VALID, C.GR_CACHED_NONE); i++ {
		if i < 100 {
			runtime.Gosched()
		} else {
			time.Sleep(10 * time.Microsecond) // the posting thread is not running now
		}
	}
}

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
