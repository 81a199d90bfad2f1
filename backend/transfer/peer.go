package transfer

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/limits"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/wire"
)

// State is the state of the session with a peer. Package initiator has the state diagram.
type State int

const (
	Connecting State = iota
	Ready
	Suspended // no session, and no evidence that the peer is dead
	Lost
	Closed
)

// String is the name that the counters use.
func (s State) String() string {
	return [...]string{Connecting: "connecting", Ready: "ready", Suspended: "suspended", Lost: "lost", Closed: "closed"}[s]
}

// Route is a link that transfers may use, as the session published it.
type Route struct {
	Link    core.Link
	Rail    *rails.Rail
	Peer    int    // index of the peer's rail
	Epoch   uint32 // the link's epoch
	Working bool
	Proved  bool // something has come over the link
	Away    bool // the link has failed and backs off or is being probed; other links may replace it
}

// View is the state that a session publishes to its transfers.
type View struct {
	State   State
	Session uint64        // number of the ready session; 0: none
	Stage   Stage         // of the ready session: begins a run of a transfer that links cannot carry directly
	Busy    func()        // of the ready session: a transfer runs, and the peer's silence must be noticed soon. It does not wait
	Routes  []Route       // never changed after publication
	Leaving bool          // the application has disconnected the peer: no transfer starts
	Why     error         // reason of Suspended, Lost or Closed
	Code    *errcode.Code // of the transfers that were in flight when the session was lost or suspended
}

// Stage is given a run under Transfer.mu, or with the transfer queued, and under Peer.mu. main is the run.
type Stage func(r *Run) (main func())

// Session is what a transfer asks of the session with its peer, which has the links and the keys. It is an interface because sessions lie
// above: a queued post, a release and a deadline begin at the transfer, and need the session's lock. Peer.mu must not be held during a call,
// except for Overlapping.
type Session interface {
	// Admit calls add under the session's lock if the peer can take posts now or once connected. add returns regions whose keys a transfer
	// wants. Then Admit calls Peer.Kick. Otherwise it returns the reason.
	Admit(add func() []*region.Region) error
	// Overlapping returns the regions of the peer that share bytes with some of the list, and none that is sliced: their slices are there
	// instead. With the session's lock held; Peer.mu may be held, too.
	Overlapping(list []*region.Region) []*region.Region
	// Fence fences the links whose epoch has not changed. overdue: it also ends the wait for a peer that does not answer a FENCE.
	Fence(links []Route, why string, overdue bool)
	// Pair begins the links between such rails that are lacking, and calls Peer.Paired when it knows which work.
	Pair(s Sets)
	// FinishRevokes completes revocations whose transfers have all drained.
	FinishRevokes()
	// Report describes the peer, and each link, as attributes of log lines, and says which packets do not arrive ("": none is known to be
	// lost). It waits a moment at most for a session that closes an endpoint, and says so then.
	Report() (about []any, links [][]any, lost string)
	// PeerReport asks the peer what it sees, and calls f once in another goroutine, within about a second: with the answer, or
	// with why there is none. The caller waits for f before the next call.
	PeerReport(f func(text string, about []any, links [][]any))
}

// Peer is a peer as transfers see it: its links, and the transfers that wait for them. Posts hold mu for reading. A session
// that changes links or keys holds its own lock, and mu for writing from Pause to Publish.
type Peer struct {
	Name   string
	Self   bool        // the peer is this engine
	Events core.Serial // of the session: the close of an endpoint may hold it up for seconds

	tab     *Table
	session Session
	theirs  []wire.RailOffer // the peer's rails. Constant
	paths   atomic.Pointer[paths]
	ends    core.Serial // deadlines and ends of transfers. Nothing in it waits for the session's lock
	rates   rates
	pending
	pairing
	reporting
	bounced sync.Map // Class: the log says that its transfers go through a rail's bounce buffers

	mu       sync.RWMutex
	view     View
	epoch    uint64 // grows when keys or links change; a transfer that was checked under an older epoch is checked again
	waiting  []*Transfer
	deferred []deferredError
	since    time.Time // when the first of the deferred errors came
	until    time.Time
}

// pending are jobs that wait once at most.
type pending struct {
	swept   atomic.Bool // the last sweep of this peer is still running
	revokes atomic.Bool // FinishRevokes is queued
}

// reporting bounds the lines about a peer in the log.
type reporting struct {
	reports limits.Lines // of timeouts: many transfers time out at once
	late    limits.Lines // of posts that do not return
	asking  atomic.Bool  // a report waits for the peer's answer
}

// deferredError is an error of a transfer that waits.
type deferredError struct {
	t      *Transfer
	code   int32
	logged bool // the error is in the log
}

// paths are the rails to a peer.
type paths struct {
	pairs []rails.Pair
	links int
}

// NewPeer returns a peer in state Connecting. theirs are its rails.
func (tab *Table) NewPeer(name string, self bool, theirs []wire.RailOffer, s Session) *Peer {
	return &Peer{Name: name, Self: self, tab: tab, session: s, theirs: theirs, reporting: reporting{reports: limits.Lines{Burst: 1}, late: limits.Lines{Burst: 1}}}
}

// SetPairs sets the rails in use, ours and the peer's, and the number of the session's links: before the first transfer, and when the
// session takes other rails or gets more links. wide: links begin when transfers need them. Transfers that are prepared have operations that any
// rail takes.
func (p *Peer) SetPairs(pairs []rails.Pair, links int, wide bool) {
	p.paths.Store(&paths{pairs, links})
	p.setsMu.Lock()
	defer p.setsMu.Unlock()
	p.wide = wide
}

// Pairs are the rails in use.
func (p *Peer) Pairs() []rails.Pair { return p.paths.Load().pairs }

// Links is the number of the session's links.
func (p *Peer) Links() int { return p.paths.Load().links }

// RailName is the name of a rail of the peer.
func (p *Peer) RailName(n int) string {
	for _, o := range p.theirs {
		if int(o.Index) == n {
			return provider.Label(o.Fabric, o.Name, int(o.Shard))
		}
	}
	return ""
}

// Place says that a rail of the peer has the next place in the core's table of keys.
func (p *Peer) Place(rail int) {
	p.setsMu.Lock()
	defer p.setsMu.Unlock()
	p.places = append(p.places, rail)
}

// placeName is the name of the peer's rail at a place in the core's table.
func (p *Peer) placeName(n int) string {
	p.setsMu.Lock()
	defer p.setsMu.Unlock()
	if n >= len(p.places) {
		return ""
	}
	return p.RailName(p.places[n])
}

// Mbps is the speed of a pair of rails, in Mbit/s; 0: unknown.
func (p *Peer) Mbps(own *rails.Rail, peer int) uint64 {
	speed := own.Device().Mbps
	for _, o := range p.theirs {
		if int(o.Index) == peer && o.Mbps > 0 && (speed == 0 || o.Mbps < speed) {
			speed = o.Mbps
		}
	}
	return speed
}

// View returns the last published view.
func (p *Peer) View() View {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.view
}

// Pause keeps posts out until Publish, so that the session may change what they read: the view, and the keys of regions. Afterwards each
// transfer is checked again at its next post. No post runs meanwhile, except one without Go that takes longer than core.PostWait: it counts
// as made before, and its links and its session must not be freed (Posting). Until Publish the caller takes no lock of this package. With
// the session's lock held.
func (p *Peer) Pause() {
	p.mu.Lock()
	p.epoch++
	until := time.Now().Add(core.PostWait)
	for _, rec := range p.tab.records.CollectActive(func(rec *Record[*Transfer]) bool {
		return rec.Value.peer == p && rec.Value.x.HasCachedPost()
	}) {
		// if the slot was freed and reused meanwhile, its new transfer takes one post through Go
		if rec.Value.x.DropCachedPostBy(until) {
			continue
		}
		if lost, ok := p.late.Next(time.Now()); ok {
			p.tab.Log.Warn("a post has not returned: the session with the peer changes all the same", "peer", p.Name, "wait", core.PostWait, "suppressed", lost)
		}
	}
}

// Publish gives transfers the session's view, and lets posts in again. kick: first it does what Kick does, so that transfers which have
// waited for the change are posted before later posts.
func (p *Peer) Publish(v View, kick bool) (wants []*region.Region) {
	defer p.mu.Unlock()
	p.view = v
	if kick {
		wants = p.kick()
	}
	return wants
}

// EndWaiting gives all waiting transfers the status of that code.
func (p *Peer) EndWaiting(code *errcode.Code) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) > 0 {
		p.tab.Log.Error("transfers failed while they waited for the peer", "peer", p.Name, "status", code.Status.String(), "count", len(p.waiting), errcode.Key, code)
	}
	for _, t := range p.waiting {
		p.tab.records.Retire(t.rec) // before the next post is possible
		t.x.Finalize(int32(code.Status))
	}
	p.waiting = nil
}

// Join lets active transfers use a link that has come up.
func (p *Peer) Join(link core.Link) {
	for _, t := range p.Active() {
		t.mu.Lock()
		left := t.x.DropCachedPost() // Core.Join reads fields that a post writes
		p.mu.RLock()
		if left && !t.freed() && t.x.InFlight() && p.has(link) {
			p.tab.Core.Join(t.x, link)
		}
		p.mu.RUnlock()
		t.mu.Unlock()
	}
}

// Relink starts transfers again that wait for links over which nothing has ever come, as links that work reach their memory.
func (p *Peer) Relink() {
	for _, t := range p.Active() {
		t.relink()
	}
}

// has reports whether the link works. Under mu.
func (p *Peer) has(link core.Link) bool {
	for _, r := range p.view.Routes {
		if r.Link == link {
			return r.Working
		}
	}
	return false
}

// Active returns the transfers with data left to move in the core, and the staged ones.
func (p *Peer) Active() []*Transfer {
	return p.tab.active(func(t *Transfer) bool { return t.peer == p && t.Busy() })
}

// Unfinished returns the transfers of Active, and those that have failed and may start again over bounce buffers.
func (p *Peer) Unfinished() []*Transfer {
	return p.tab.matching(func(t *Transfer) bool { return t.peer == p && (t.Busy() || t.x.NeedsFinalize()) })
}

// Posting reports that a post without Go is in progress.
func (p *Peer) Posting() bool {
	return len(p.tab.records.CollectActive(func(rec *Record[*Transfer]) bool { return rec.Value.peer == p && rec.Value.x.Posting() })) > 0
}

// Leak marks READs for which a stopped process may still make a copy, although the endpoint is closed.
func (p *Peer) Leak() {
	for _, t := range p.tab.active(func(t *Transfer) bool { return t.peer == p && t.op == Read }) {
		t.leaked.Store(true)
	}
}

// stranded reports that all routes to that memory have failed while another route works. Under mu.
func (p *Peer) stranded(reaches func(*Route) bool) bool {
	works := false
	for i := range p.view.Routes {
		r := &p.view.Routes[i]
		if !r.Away && reaches(r) {
			return false
		}
		works = works || r.Working
	}
	return works
}

// Ended returns the code for transfers if the session is not ready, or only delivers; false: the session is ready.
func (p *Peer) Ended() (*errcode.Code, bool) {
	v := p.View()
	switch {
	case v.State == Ready && !v.Leaving:
		return nil, false
	case v.State == Ready, v.State == Closed:
		return errcode.Disconnected, true
	}
	return v.Code, true
}

// ended describes why a link closed under a transfer.
func (p *Peer) ended() error {
	if v := p.View(); v.State == Suspended && v.Why != nil {
		return errcode.SessionLost.Errorf("the session was lost: %w", v.Why)
	}
	return errcode.SessionLost.Errorf("the link was closed")
}

// path names the rails of the session's links.
func (p *Peer) path() (names []string) {
	for _, r := range p.View().Routes {
		if name := r.Rail.Name(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// finishRevokes queues FinishRevokes of the session.
func (p *Peer) finishRevokes() {
	if p.revokes.Swap(true) {
		return
	}
	p.Events.Do(p.tab.Life, func() {
		p.revokes.Store(false)
		p.session.FinishRevokes()
	})
}

// Session returns the session with the peer.
func (p *Peer) Session() Session { return p.session }
