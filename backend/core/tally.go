package core

// #include "gr_policy.h"
import "C"

import (
	"time"
	"unsafe"
)

// Counts are the counters of a link or a rail. Package stats has the same Counts and describes each counter. The core
// leaves Fences and Stalls at 0; the layers that decide on fences and stalls count them.
type Counts struct {
	BytesWritten     uint64
	BytesRead        uint64
	WorkRequests     uint64
	Completions      uint64
	Errors           uint64
	Flushed          uint64
	Retries          uint64
	EAGAIN           uint64
	MessagesSent     uint64
	MessagesReceived uint64
	Probes           uint64
	Fences           uint64
	Stalls           uint64
}

// Tally holds the counters of a link or a rail, and its current state.
type Tally struct {
	Counts
	InFlight uint64 // bytes posted and not completed
	Rate     uint64 // measured rate of a link in bytes per second; 0: not yet measured
	Links    int    // current links of a rail

	Last time.Duration // Now() of the last completion; 0: none yet
}

func tally(t *C.gr_tally) Tally {
	n := func(i int) uint64 { return uint64(t.count[i]) }
	return Tally{
		Counts: Counts{
			BytesWritten: n(C.GR_N_WRITE_BYTES), BytesRead: n(C.GR_N_READ_BYTES), WorkRequests: n(C.GR_N_WRS),
			Completions: n(C.GR_N_COMPLETIONS), Errors: n(C.GR_N_ERRORS) + n(C.GR_N_REFUSED), Retries: n(C.GR_N_RETRIES),
			Flushed: n(C.GR_N_FLUSHED), EAGAIN: n(C.GR_N_EAGAIN), MessagesSent: n(C.GR_N_MSGS_SENT), MessagesReceived: n(C.GR_N_MSGS_RECEIVED),
			Probes: n(C.GR_N_PROBES),
		},
		InFlight: uint64(t.inflight), Rate: uint64(t.rate), Links: int(t.links),
		Last: time.Duration(t.last_ns),
	}
}

// Tally reads the link's counters without a lock. Not after Free. Implements gr_link_tally.
func (l Link) Tally() Tally {
	var t C.gr_tally
	C.gr_link_tally(l.l, &t)
	return tally(&t)
}

// RailTally reads the counters of a rail by the index from AddRail, without a lock. It counts all links of the rail since
// then, freed links included. Not after DropRails. Implements gr_rail_tally.
func (k *Core) RailTally(rail int) Tally {
	var t C.gr_tally
	C.gr_rail_tally(k.c, C.int(rail), &t)
	return tally(&t)
}

// Sizes of the histograms of RailTimes. The last bucket holds times that are not known exactly.
const (
	TimeClasses = C.GR_TIME_CLASSES
	TimeBuckets = C.GR_TIME_BUCKETS
)

// RailTimes reads how long transfers over a rail took, without a lock: by size class, and by bucket. Not after DropRails.
// Implements gr_rail_times.
func (k *Core) RailTimes(rail int) (n [TimeClasses][TimeBuckets]uint64) {
	C.gr_rail_times(k.c, C.int(rail), (*[TimeBuckets]C.uint64_t)(unsafe.Pointer(&n)))
	return n
}

// Path is the bytes of a transfer that one pair of rails carried.
type Path struct {
	Own   int // our rail's number
	Peer  int // the place of the peer's rail in the table of keys
	Bytes uint64
}

// Paths returns the bytes of the transfer's last round by pair of rails. Bytes that a replay moved again count twice. Only
// when the transfer is not running. Implements gr_xfer_paths.
func (x Xfer) Paths() []Path {
	var c [MaxLinks]C.gr_path
	n := C.gr_xfer_paths(x.x, &c[0], MaxLinks)
	paths := make([]Path, n)
	for i, p := range c[:n] {
		paths[i] = Path{int(p.own), int(p.peer), uint64(p.bytes)}
	}
	return paths
}
