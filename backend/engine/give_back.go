package engine

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// An engine that has been idle for so long gives memory back. Go's runtime keeps what handshakes and transfers needed once: of 1,000 sessions that
// began together, 25 MiB for ever.
const (
	giveBackAfter = 16 * time.Second // between ticks
	worthGiving   = 4 << 20          // bytes beyond what the last time has left
)

// given is what Go's runtime, which all engines of a process share, had after it gave memory back last.
var given struct {
	sync.Mutex
	left uint64
}

// giveBack gives memory that is not in use to the kernel, if that may be much. It shrinks stacks, too.
func giveBack() {
	given.Lock()
	defer given.Unlock()
	if ownMemory() < given.left+worthGiving {
		return
	}
	for range 2 {
		runtime.GC() // each halves stacks
	}
	debug.FreeOSMemory()
	given.left = ownMemory()
}

// ownMemory is the memory that Go's runtime has for stacks and the heap, used or not.
func ownMemory() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.StackSys + m.HeapSys - m.HeapReleased
}
