package option

import "gorail/backend/host"

// maxSlots is MAX_RAILS of the core.
const maxSlots = 64

// Threads is option tcp_threads, or a quarter of the processors that this process may use.
func (o *Fabrics) Threads() int {
	if o.TCPThreads > 0 {
		return o.TCPThreads
	}
	return min(max(1, processors()/4), MaxThreads)
}

// processors does not follow a changed quota of the container: the core's tables have the size of the first answer.
func processors() int { return host.Quota() }

// Slots is the most rails of an engine: max_rails, the loopback device, shared memory, and the further shards of two devices.
func (o *Fabrics) Slots() int { return min(o.MaxRails+2+2*(o.Threads()-1), maxSlots) }

// spinProcessors is the number of processors from which a progress thread polls on after it served a peer. 16 processors of a
// Xeon, 4 KiB over tcp: 17.8 us become 12.4, between memory of GPUs 33.4 become 26. On two processors the thread takes the time of those
// it waits for.
const spinProcessors = 4

// SpinsForPeers reports whether a progress thread polls on after it served a peer, as after a completion.
func (o *Fabrics) SpinsForPeers() bool { return processors() >= spinProcessors }
