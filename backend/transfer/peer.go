package transfer

import (
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/lifetime"
	"gorail/backend/rail"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/wire"
	"gorail/backend/xfer"
)

// State is where the session with a peer stands. Package initiator draws how it changes.
type State int

const (
	Connecting State = iota
	Ready
	Suspended // no session, and no word that the peer is dead
	Lost
	Closed
)

// String is as the counters have it.
func (s State) String() string {
	return [...]string{Connecting: "connecting", Ready: "ready", Suspended: "suspended", Lost: "lost", Closed: "closed"}[s]
}

// Route is a link that transfers may take, as it was when its session published it.
type Route struct {
	Link    core.Link
	Rail    *rails.Rail
	Peer    int    // the peer's rail
	Epoch   uint32 // of the link
	Working bool
	Away    bool // it has failed, and rests or is tried again: others may stand in for it
}

// View is what a session tells its transfers.
type View struct {
	State   State
	Live    Live        // of the session that is ready; nil: there is none
	Routes  []Route     // never changed once published
	Leaving bool        // the application has let go of the peer: nothing new is begun
	Why     error       // why it is suspended, lost or closed
	Code    status.Code // what transfers in flight got when it was lost or suspended
}

// Session is what transfers ask of the session with a peer. None of it is called with Peer.mu held but WantKeys.
type Session interface {
	// Admit calls add, with the session's lock held, if the peer can be posted to now or when it is connected; then it has Peer.Kick look at what
	// waits. Else it says why not.
	Admit(add func()) error
	// WantKeys asks for keys of the peer's regions that nobody has asked for, before all else. With the session's lock held.
	WantKeys(list []*region.Region)
	// Load gives the peer's region of that range, as long as the session with ourselves lives: for transfers to ourselves.
	Load(rng wire.Range) (*region.Region, error)
	// Fence fences those of the links that still have the epoch.
	Fence(links []Route, why string)
	// Unanswered ends the wait for a peer that does not answer a FENCE.
	Unanswered(now time.Time)
	// FinishRevokes looks for revocations whose transfers have all drained.
	FinishRevokes()
	// Path names the rails in use; Texts says of each link where it leads and what it does.
	Path() []string
	Texts() string
	// PeerRail names a rail of the peer's. Mbps is the speed of a pair of rails, in Mbit/s; 0: unknown.
	PeerRail(n int) string
	Mbps(own *rails.Rail, peer int) uint64
}

// Live is one session that is ready.
type Live interface {
	// Stage makes a run for a transfer that links don't carry as it is; it has not begun.
	Stage(t *Transfer, hasNotif bool, msg []byte, tried Tried) Run
}

// Peer is what transfers know of a peer: which way there is, and what waits for one. Posts hold mu for reading; a session that changes links or
// keys holds its own lock, and mu for writing while it publishes: see Change.
type Peer struct {
	Name   string
	Self   bool        // it is we ourselves
	Pairs  []rail.Pair // the rails in use, ours and the peer's
	Links  int         // how many links the session has
	Events lifetime.Serial

	tab     *Table
	session Session
	swept   atomic.Bool // the sweeper's last look is not over
	rates   rates

	mu      sync.RWMutex
	view    View
	epoch   uint64 // grows when keys or links change: a transfer checked under an older one is checked again
	waiting []*Transfer
	held    []held
	since   time.Time // when the first of them ended
	until   time.Time
}

// held is a transfer whose error waits.
type held struct {
	t    *Transfer
	code int32
	told bool // it is in the log
}

// NewPeer is connecting. pairs and links don't change.
func (tab *Table) NewPeer(name string, self bool, pairs []rail.Pair, links int, s Session) *Peer {
	return &Peer{Name: name, Self: self, Pairs: pairs, Links: links, tab: tab, session: s}
}

// View is what was published last.
func (p *Peer) View() View {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.view
}

// Change makes a change of what posts look at: the view, keys of regions. Transfers that were found good are looked at again with their next
// post, and nothing is posted past us until f has returned. f takes no lock of this package. With the session's lock held.
func (p *Peer) Change(f func(v *View)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.change(f)
}

// change: under mu.
func (p *Peer) change(f func(v *View)) {
	p.epoch++
	for _, rec := range p.tab.records.CollectActive(func(rec *xfer.Record[*Transfer]) bool {
		return rec.Value.peer == p && rec.Value.x.HasCachedPost()
	}) {
		rec.Value.x.DropCachedPost() // should it have been freed meanwhile, and the slot be another's, that one goes through Go once
	}
	f(&p.view)
}

// EndWaiting gives those that wait their status.
func (p *Peer) EndWaiting(code status.Code) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.waiting {
		p.tab.records.Rest(t.rec) // before it may be posted again
		t.x.Finalize(int32(code))
	}
	p.waiting = nil
}

// Join lets transfers under way use a link that has come up.
func (p *Peer) Join(link core.Link) {
	for _, t := range p.Active() {
		t.mu.Lock()
		t.x.DropCachedPost() // Join looks at what a post writes
		p.mu.RLock()
		if !t.freed() && t.x.InFlight() && p.has(link) {
			p.tab.Core.Join(t.x, link)
		}
		p.mu.RUnlock()
		t.mu.Unlock()
	}
}

// has says that the link works. Under mu.
func (p *Peer) has(link core.Link) bool {
	for _, r := range p.view.Routes {
		if r.Link == link {
			return r.Working
		}
	}
	return false
}

// Active gives the transfers of which the core has data to move, and those that are staged.
func (p *Peer) Active() []*Transfer {
	return p.tab.active(func(t *Transfer) bool { return t.peer == p && t.Busy() })
}

// Leak notes the READs for which a stopped process may still make a copy, though the endpoint is closed.
func (p *Peer) Leak() {
	for _, t := range p.tab.active(func(t *Transfer) bool { return t.peer == p && t.op == Read }) {
		t.leaked.Store(true)
	}
}

// stranded says that the routes that reach some memory are all away while others work. Under mu.
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

// Ended says what transfers get whose session is over; false: it is not.
func (p *Peer) Ended() (status.Code, bool) {
	v := p.View()
	switch {
	case v.State == Ready:
		return 0, false
	case v.State == Closed:
		return status.ErrBackend, true
	}
	return v.Code, true
}

// ended is why a link was closed under a transfer, as far as is known.
func (p *Peer) ended() string {
	if v := p.View(); v.State == Suspended && v.Why != nil {
		return "the session was lost: " + v.Why.Error()
	}
	return "the link was closed"
}

// Session is the session with the peer.
func (p *Peer) Session() Session { return p.session }
