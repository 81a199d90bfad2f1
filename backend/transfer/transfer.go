package transfer

import (
	"bytes"
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
	untold   atomic.Bool // its path is not in the log yet; set only where that takes it
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

// Post starts the transfer: at once when the peer is connected and its keys are here, else when they are. The result is
// 0 or 1 (in progress). Implements postXfer.
func (tab *Table) Post(handle uint64, hasNotif bool, msg []byte) (int32, error) {
	t, err := tab.Get(handle)
	if err != nil {
		return 0, status.Errorf(status.ErrNotFound, "post: %w", err)
	}
	return t.Post(hasNotif, msg)
}

// Post is Table.Post.
func (t *Transfer) Post(hasNotif bool, msg []byte) (int32, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.freed() {
		return 0, status.Errorf(status.ErrNotFound, "post: the transfer was released")
	}
	t.x.TakeTicket() // nobody else posts it meanwhile
	if t.x.Running() || t.x.Unsettled() {
		return 0, status.Errorf(status.ErrRepostActive, "post: the transfer is still in flight")
	}
	t.tell()
	if len(msg) > core.MaxNotif {
		return 0, status.Errorf(status.ErrInvalidParam, "notification of %d bytes: the limit is %d", len(msg), core.MaxNotif)
	}
	p := t.peer
	p.mu.RLock()
	if p.view.Live != nil && (t.checked == p.epoch || t.ready()) {
		defer p.mu.RUnlock()
		t.begin(hasNotif)
		t.start(hasNotif, msg)
		if !t.tab.debug && !t.rings { // else every run is told
			t.x.GiveTicket()
		}
		return t.result()
	}
	p.mu.RUnlock()
	return t.enqueue(hasNotif, msg)
}

// result is what post returns; a failure that is known already is the application's at once.
func (t *Transfer) result() (int32, error) {
	if t.x.Running() || t.x.Unsettled() || t.op == Read && t.tab.Regions.Flushes.Load() {
		return int32(status.InProg), nil
	}
	return int32(status.Success), nil
}

// attached says that the core's links of the transfer are those of the session that is ready: those of an earlier one may be freed. Under t.mu
// and Peer.mu for reading.
func (t *Transfer) attached() bool { return t.peer.view.Live != nil && t.live == t.peer.view.Live }

func (t *Transfer) begin(hasNotif bool) {
	t.sample()
	t.hasNotif, t.stopped = hasNotif, running
	t.reason, t.kept = "", false
	t.aborted, t.taken = time.Time{}, time.Time{}
	t.leaked.Store(false)
	t.x.Start()
	t.tab.records.Begin(t.rec)
}

// start hands the transfer to the core. Under t.mu or with t queued, and under Peer.mu (reading is enough), with a session that is ready.
func (t *Transfer) start(hasNotif bool, msg []byte) {
	t.rec.Post()
	t.live = t.peer.view.Live
	if t.rings {
		tried := LinksUntried
		if t.refused == refusals {
			tried = LinksRefused
		}
		t.stage(hasNotif, msg, tried)
		return
	}
	if t.tab.debug {
		t.untold.Store(true)
	}
	t.tab.Core.Post(t.x, t.links, t.near, hasNotif, msg)
}

// stage starts a run. Under t.mu or with t queued, with x running, and under Peer.mu (reading is enough), with a session that is ready.
func (t *Transfer) stage(hasNotif bool, msg []byte, tried Tried) {
	run := t.peer.view.Live.Stage(t, hasNotif, bytes.Clone(msg), tried)
	t.run.Store(&run)
	t.sampled = t.x.Posted() // what the core knows of times is of another run
	t.tab.Life.Go(run.Main)
}

// enqueue keeps the post until the peer is ready, or says why that will not be. Under t.mu.
func (t *Transfer) enqueue(hasNotif bool, msg []byte) (int32, error) {
	p, started := t.peer, false
	err := p.session.Admit(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		t.begin(hasNotif)
		t.posted = time.Now()
		if started = p.view.Live != nil && t.ready(); started { // it became ready meanwhile
			t.start(hasNotif, msg)
			return
		}
		t.msg = bytes.Clone(msg)
		p.waiting = append(p.waiting, t)
		if p.view.Live != nil {
			for _, g := range t.remotes {
				g.Unknown = false // it may have been registered again
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case started:
		return t.result()
	}
	return int32(status.InProg), nil
}
