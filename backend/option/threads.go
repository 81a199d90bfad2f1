package option

import (
	"runtime"
	"sync"
)

// maxSlots is MAX_RAILS of the core.
const maxSlots = 64

// Threads is option tcp_threads, or a quarter of the processors that this process may use.
func (o *Fabrics) Threads() int {
	if o.TCPThreads > 0 {
		return o.TCPThreads
	}
	return min(max(1, processors()/4), MaxThreads)
}

// processors is asked once. Go follows a changed quota of the container, but the core's tables have the size of the first answer.
var processors = sync.OnceValue(func() int { return min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) })

// Slots is the most rails of an engine: max_rails, the loopback device, shared memory, and the further shards of two devices.
func (o *Fabrics) Slots() int { return min(o.MaxRails+2+2*(o.Threads()-1), maxSlots) }
