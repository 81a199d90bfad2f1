package transfer

import (
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/plan"
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/xfer"
)

// The operations of a transfer.
const (
	Read  = core.Read
	Write = core.Write
)

// Transfer is a prepared request. Its C slot is what the application's checks read; the record keeps its state here.
type Transfer struct {
	tab   *Table
	rec   *xfer.Record[*Transfer]
	peer  *Peer
	x     core.Xfer
	op    int
	bytes uint64
	memory
	inner chan struct{} // of a run's: gets one when it has ended; nil: the application's

	run      atomic.Pointer[Run]
	zombie   atomic.Bool // the agent has released it; freed when drained
	unlogged atomic.Bool // its path is not in the log yet; set only where that takes it
	unlinked atomic.Bool // an inner one that no link carries
	leaked   atomic.Bool // an endpoint was closed while a stopped process may still copy for it

	mu sync.Mutex
	way
	post
	ending

	msg []byte // while it is queued, in Peer.waiting; guarded by Peer.mu
}

// memory is what a transfer is over. It does not change.
type memory struct {
	locals  []*region.Region
	remotes []*region.Region
	class   Class
	gpu     bool // some of its memory is a GPU's, whatever class says of the first
	bulk    bool // one post of a rail that copies GPUs' memory
}

// way is how a transfer goes. Under its mu.
type way struct {
	checked uint64      // Peer.epoch under which keys and links were found good
	links   []core.Link // those that can carry it, the near ones first
	near    int         // how many of them are near its local memory
	live    Live        // the session that its links are of
	staged  bool        // always: links can't carry it
	refused int         // runs in which links turned out not to reach the peer's memory
	rings   bool        // staged, as ready found last
}

// post is the last post of a transfer. Under its mu.
type post struct {
	hasNotif bool
	posted   time.Time     // when it was last queued; the core notes when it starts
	sampled  time.Duration // the post whose time is in Peer.rates
	stopped  stopped
}

// stopped is why a transfer was stopped that is to be begun anew, over rings.
type stopped int

const (
	running      stopped = iota
	slowToMap            // the peer's memory takes long to be mapped
	withoutRails         // the rails that reach its memory are down
)

// ending is how a post ends early. Under the transfer's mu.
type ending struct {
	reason  string    // why we aborted it
	why     string    // an inner one's error
	aborted time.Time // by us
	taken   time.Time // when the peer took memory of it back, all of it being posted
	kept    bool      // a release was refused
}

// Run is one run of a transfer that is staged: it ends by Transfer.EndRun.
type Run interface {
	Main()
	// Cancel makes it end soon; the first reason counts.
	Cancel(code status.Code, err error)
	// Inner are the transfers that it is made of, and Copying says that it has not been cancelled, or that memory of ours is being copied.
	Inner() []*Transfer
	Copying() bool
}

// Tried is what a run knows of links that may carry the whole of it.
type Tried int

const (
	LinksUntried Tried = iota
	LinksRefused       // they don't reach the peer's memory
	LinksOpening       // they will: it is being mapped
)

// refusals is how often a request finds that the peer's memory can't be mapped before it no longer tries: it may have been for want of something.
const refusals = 3

// Op is the operation, Bytes what it moves, Ops how: they are there until the transfer is freed.
func (t *Transfer) Op() int        { return t.op }
func (t *Transfer) Bytes() uint64  { return t.bytes }
func (t *Transfer) Ops() []plan.Op { return plan.At(t.x.Ops()) }
func (t *Transfer) Peer() *Peer    { return t.peer }

// Handle is the transfer's for the application, and Slot what the shim reads.
func (t *Transfer) Handle() uint64  { return t.rec.Handle().Uint64() }
func (t *Transfer) Slot() core.Xfer { return t.x }

// Locals are its regions of ours, Remotes the peer's. Regions gives all by their numbers.
func (t *Transfer) Locals() []*region.Region  { return t.locals }
func (t *Transfer) Remotes() []*region.Region { return t.remotes }

func (t *Transfer) Regions() map[uint32]*region.Region {
	m := make(map[uint32]*region.Region, len(t.locals)+len(t.remotes))
	for _, list := range [][]*region.Region{t.locals, t.remotes} {
		for _, g := range list {
			m[region.Index(g.ID)] = g
		}
	}
	return m
}

// freed says that x belongs to somebody else. Under mu it stays so.
func (t *Transfer) freed() bool { return t.rec.State() == xfer.Freed }

// staging is the run that is under way; nil: there is none.
func (t *Transfer) staging() Run {
	if r := t.run.Load(); r != nil {
		return *r
	}
	return nil
}

func (t *Transfer) uses(r *region.Region) bool {
	for _, g := range t.locals {
		if g == r {
			return true
		}
	}
	for _, g := range t.remotes {
		if g == r {
			return true
		}
	}
	return false
}

// attached says that the core's links of the transfer are those of the session that is ready: those of an earlier one may be freed. Under t.mu
// and Peer.mu for reading.
func (t *Transfer) attached() bool { return t.peer.view.Live != nil && t.live == t.peer.view.Live }

// Busy says that the transfer uses memory of either side: the core has data of it to move, or it is staged.
func (t *Transfer) Busy() bool { return !t.freed() && (t.x.InFlight() || t.run.Load() != nil) }
