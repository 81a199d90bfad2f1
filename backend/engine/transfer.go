package engine

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"gorail/backend/core"
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/xfer"
)

// transfer is a prepared request. Its C slot is what the application's checks read; the record keeps its state here.
type transfer struct {
	e       *Engine
	rec     *xfer.Record[*transfer]
	remote  *remote
	locals  []*region.Region
	remotes []*region.Region
	op      int
	class   class
	gpu     bool // some of its memory is a GPU's, whatever class says of the first
	bulk    bool // one post of a rail that copies GPUs' memory
	run     atomic.Pointer[stagedRun]
	inner   chan struct{} // of a run's: gets one when it has ended; nil: the application's
	bytes   uint64
	zombie  atomic.Bool // the agent has released it; freed when drained

	mu       sync.Mutex
	x        core.Xfer
	checked  uint64      // remote.epoch under which keys and links were found good
	links    []core.Link // those that can carry it, the near ones first
	near     int         // how many of them are near its local memory
	hasNotif bool
	posted   time.Time     // when it was last queued; the core notes when it starts
	sampled  time.Duration // the post whose time is in remote.rates
	untold   atomic.Bool   // its path is not in the log yet; set only where that takes it
	staged   bool          // always: links can't carry it
	opening  bool          // it was stopped because the peer's memory takes long to be mapped
	away     bool          // it was stopped because the rails that reach its memory are down
	refused  int           // runs in which links turned out not to reach the peer's memory
	rings    bool          // staged, as ready found last
	why      string        // an inner one's error
	unlinked atomic.Bool   // an inner one that no link carries
	reason   string        // why we aborted it
	aborted  time.Time     // by us
	taken    time.Time     // when the peer took memory of it back, all of it being posted
	asked    *asking       // the session that its links are of
	kept     bool          // a release was refused
	leaked   atomic.Bool   // an endpoint was closed while a stopped process may still copy for it

	msg []byte // while it is queued, in remote.waiting; guarded by remote.mu
}

// freed says that x belongs to somebody else. Under mu it stays so.
func (t *transfer) freed() bool { return t.rec.State() == xfer.Freed }

func (t *transfer) uses(r *region.Region) bool {
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
func (e *Engine) Post(handle uint64, hasNotif bool, msg []byte) (int32, error) {
	rec, err := e.xfers.Get(xfer.FromUint64(handle))
	if err != nil {
		return 0, status.Errorf(status.ErrNotFound, "post: %w", err)
	}
	t := rec.Value
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
	r := t.remote
	r.mu.RLock()
	if r.state == ready && (t.checked == r.epoch || t.ready(r)) {
		defer r.mu.RUnlock()
		t.begin(hasNotif)
		t.start(r, hasNotif, msg)
		if !e.debug && !t.rings { // else every run is told
			t.x.GiveTicket()
		}
		return t.result()
	}
	r.mu.RUnlock()
	return t.enqueue(hasNotif, msg)
}

// result is what post returns; a failure that is known already is the application's at once.
func (t *transfer) result() (int32, error) {
	if t.x.Running() || t.x.Unsettled() || t.op == opRead && t.e.regions.Flushes.Load() {
		return int32(status.InProg), nil
	}
	return int32(status.Success), nil
}

// attached says that the core's links of the transfer are those of the session that is ready: those of an earlier one may be freed. Under t.mu
// and r.mu for reading.
func (t *transfer) attached(r *remote) bool { return r.state == ready && t.asked == r.asked }

func (t *transfer) begin(hasNotif bool) {
	t.sample()
	t.hasNotif = hasNotif
	t.reason, t.opening, t.away = "", false, false
	t.aborted, t.taken = time.Time{}, time.Time{}
	t.kept = false
	t.leaked.Store(false)
	t.x.Start()
	t.e.xfers.Begin(t.rec)
}

// start hands the transfer to the core. Under t.mu and r.mu (reading is enough).
func (t *transfer) start(r *remote, hasNotif bool, msg []byte) {
	t.rec.Post()
	t.asked = r.asked
	if t.rings {
		tried := linksUntried
		if t.refused == refusals {
			tried = linksRefused
		}
		t.stage(r, hasNotif, msg, tried)
		return
	}
	if t.e.debug {
		t.untold.Store(true)
	}
	t.e.core.Post(t.x, t.links, t.near, hasNotif, msg)
}

// enqueue keeps the post until the peer is ready, or says why that will not be. Under t.mu.
func (t *transfer) enqueue(hasNotif bool, msg []byte) (int32, error) {
	r := t.remote
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.postable(); err != nil {
		return 0, err
	}
	t.begin(hasNotif)
	t.posted = time.Now()
	t.msg = bytes.Clone(msg)
	if r.state == ready && t.ready(r) { // it became ready meanwhile
		t.start(r, hasNotif, t.msg)
		return t.result()
	}
	r.waiting = append(r.waiting, t)
	if r.state == ready {
		for _, g := range t.remotes {
			g.Unknown = false // it may have been registered again
		}
		r.kick()
		r.pull()
	}
	return int32(status.InProg), nil
}

// kick starts the waiting transfers that have become ready and ends those that never will. Under r.mu.
func (r *remote) kick() {
	keep := r.waiting[:0]
	for _, t := range r.waiting {
		switch {
		case t.ready(r):
			t.start(r, t.hasNotif, t.msg)
			t.msg = nil
		case t.hopeless() != nil:
			t.giveUp(t.hopeless())
		default:
			keep = append(keep, t)
			r.pullFor(t)
		}
	}
	clear(r.waiting[len(keep):])
	r.waiting = keep
}

// Desc is one element of a descriptor list, in the layout of nixlMetaDesc. MD is the shim's metadata object.
type Desc struct {
	Addr, Len, Dev uint64
	MD             unsafe.Pointer
}

// MDRegion is where the shim's metadata object keeps the region id: GR_MD_REGION, which package plugin compares.
const MDRegion = 16

func (d *Desc) region() uint64 {
	if d.MD == nil {
		return 0
	}
	return *(*uint64)(unsafe.Add(d.MD, MDRegion))
}
