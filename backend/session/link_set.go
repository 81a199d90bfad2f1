package session

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"gorail/backend/core"
	"gorail/backend/failpoint"
	"gorail/backend/lifetime"
	"gorail/backend/limits"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/stats"
)

// GoodbyeWait is the least time that the goodbye of a session waits for operations in flight.
const GoodbyeWait = 10 * time.Second

// Set holds all links of an engine.
type Set struct {
	Rails          *rails.Set
	Log            *slog.Logger
	Life           *lifetime.Engine
	ConnectTimeout time.Duration // option connect_timeout

	mu    sync.Mutex
	links map[uint64]*Link // the links that are in the core
}

// Event passes an event of the core to the session of its link. It drops events of links that are gone.
func (s *Set) Event(ev core.Event) {
	s.mu.Lock()
	l := s.links[ev.ID]
	s.mu.Unlock()
	if l != nil {
		l.owner.LinkEvent(l, ev.Seq, ev.Code)
	}
}

// Open opens an endpoint. The core's link follows when the peer's address is known. With an error Open returns a link
// without an endpoint, for when the rail's device comes up.
func (s *Set) Open(owner Owner, num, rail, peerRail int) (l *Link, err error) {
	r := s.Rails.List[rail]
	l = &Link{ID: s.Life.NextID()<<32 | uint64(rand.Uint32()), Num: num, Rail: r, Peer: peerRail, owner: owner, meter: &meter{}, lines: limits.Lines{Burst: burstLines}}
	l.OwnRail = s.Rails.FirstShard(rail)
	if l.EP, err = r.OpenEndpoint(); err != nil {
		l.EP = nil
		l.Enter(BackingOff, time.Now())
	}
	return l, err
}

// Reach connects a fresh endpoint to the peer's endpoint, with Endpoint.Connect. sec is of the endpoint's link: see Channel.Security.
func (s *Set) Reach(ep provider.Endpoint, addr []byte, sec provider.Security) error {
	listener, ok := ep.(provider.Listener)
	if ok {
		listener.Secure(sec)
	}
	err := failpoint.Fail("engine_connect")
	if err == nil {
		err = ep.Connect(addr)
	}
	switch {
	case !ok:
	case err != nil:
		listener.Shut()
	default:
		s.Life.After(max(s.ConnectTimeout, MostUnproved+2*ProbeTime), listener.Shut) // the peer's link may back off first
	}
	return err
}

// Connect connects an endpoint to the peer's endpoint at addr and starts the link, whose PeerID is set.
func (s *Set) Connect(l *Link, sess core.Session, addr []byte, c Channel, probe bool) error {
	if err := s.Reach(l.EP, addr, c.Security(l)); err != nil {
		return err
	}
	return s.Attach(l, sess, c.Role, probe)
}

// Attach starts a link whose endpoint is connected.
func (s *Set) Attach(l *Link, sess core.Session, role core.Role, probe bool) error {
	l.NoteEnds()
	slot := l.Peer
	if role == core.Target {
		slot = 0 // a target uses no keys of the peer
	}
	s.mu.Lock()
	if s.links == nil {
		s.links = map[uint64]*Link{}
	}
	s.links[l.ID] = l
	s.mu.Unlock()
	c, err := sess.NewLink(l.Rail.Index, slot, l.EP.Core(), l.ID, l.PeerID, role, probe)
	l.Core, l.Up = c, c.Exists()
	l.meter.begin(c)
	return err // on an error, Drop closes the endpoint and frees the link
}

// Quiesce ends all access through the link's endpoint. On return the library accesses no local buffer for it, and no
// peer reaches our memory through it. A link of a shared endpoint only stops. An error: a stopped process of this host
// may still make a copy, or a GPU (provider.GPUBusy).
func (s *Set) Quiesce(l *Link) (err error) {
	if l.Up {
		l.Core.Stop()
	}
	if l.Shared() {
		return nil // a shared endpoint drains first: see Drop, and drain of a session
	}
	if l.EP != nil {
		if err = l.EP.Close(); err != nil {
			s.Log.Warn("closing an endpoint failed", "peer", l.owner.PeerName(), "rail", l.Rail.Name(), "err", err)
		}
		l.EP = nil
		if busy := (*provider.GPUBusy)(nil); errors.As(err, &busy) {
			l.owner.GPUBusy(busy) // before Reap ends the operations
		}
	}
	if l.Up {
		l.Core.Reap()
	}
	return err
}

// stillPosted returns true if a link has operations posted. After Quiesce only links of shared endpoints can have any.
func stillPosted(links []*Link) bool {
	return slices.ContainsFunc(links, func(l *Link) bool { return !l.Drained() })
}

// posting returns true if a post may still use the links.
func posting(links []*Link) bool { return len(links) > 0 && links[0].owner.Posting() }

// Drop ends a session's links for good. Everything queued on them ends with the status. Links of shared endpoints drain
// first, in the background. The peer answers a FENCE for the links on which an operation failed, also in the background.
// Their transfers stay in progress until then, because their memory is in use. Drop closes the channel when all is
// quiet. nil: all is quiet on return. bye may be nil.
func (s *Set) Drop(links []*Link, sess core.Session, status int32, bye *parting) <-chan struct{} {
	for _, l := range links {
		_ = s.Quiesce(l) // Quiesce logs the error
		s.mu.Lock()
		delete(s.links, l.ID)
		s.mu.Unlock()
	}
	if bye != nil {
		bye.ask(links)
	}
	if stillPosted(links) || posting(links) || bye != nil && bye.waits() {
		drained := make(chan struct{})
		s.Life.Go(func() {
			s.dropWhenQuiet(links, sess, status, bye)
			close(drained)
		})
		return drained
	}
	s.free(links, sess, status)
	return nil
}

// dropWhenQuiet waits until the links are quiet, but at most atClose after the engine begins to close.
func (s *Set) dropWhenQuiet(links []*Link, sess core.Session, status int32, bye *parting) {
	const atClose = 2 * time.Second
	var closing time.Time
	for ; stillPosted(links) || posting(links) || bye != nil && bye.waits(); time.Sleep(time.Millisecond) {
		if closing.IsZero() && s.Life.Closed() {
			closing = time.Now()
		}
		if !closing.IsZero() && time.Since(closing) > atClose {
			if posting(links) {
				s.Log.Error("a post has not returned: the links of an ended session are leaked", "peer", links[0].owner.PeerName())
				return
			}
			for _, l := range slices.DeleteFunc(slices.Clone(links), (*Link).Drained) {
				s.Log.Error("operations of an ended session did not complete within 2 s; their memory may still be accessed",
					"peer", l.owner.PeerName(), "rail", l.Rail.Name())
			}
			break
		}
	}
	s.free(links, sess, status)
}

// free ends quiet links. All links end before the first is freed: a transfer's last sub-transfer may still hand its
// notification to another link.
func (s *Set) free(links []*Link, sess core.Session, status int32) {
	for _, l := range links {
		if !l.Shared() {
			continue
		}
		if l.Up {
			l.Core.Reap()
		}
		if l.EP != nil {
			if err := l.EP.Close(); err != nil {
				s.Log.Warn("closing a shared endpoint failed", "rail", l.Rail.Name(), "err", err)
			}
			l.EP = nil
		}
	}
	for _, l := range links {
		if l.Up {
			l.Core.Fail(status)
		}
	}
	for _, l := range links {
		if l.Up {
			l.meter.end()
			l.Core.Free()
			l.Up = false
		}
	}
	sess.Free()
}

// View is a session for the counters: its names are read at once, its counters when Read is called.
type View struct {
	peer   stats.Peer
	meters []*meter // of its links
}

// NewView makes the view of a session. peerRail gives the name of the peer's rail with an index.
func NewView(p stats.Peer, links []*Link, peerRail func(n int) string) View {
	v := View{peer: p}
	for _, l := range links {
		v.meters = append(v.meters, l.meter)
		v.peer.Links = append(v.peer.Links, stats.Link{Rail: l.Rail.Name(), Index: l.Rail.Index, PeerRail: peerRail(l.Peer),
			PeerIndex: l.Peer, Number: l.Num, Phase: l.PhaseName()})
	}
	return v
}

// Session is the number of the session, and Agent the peer's name.
func (v View) Session() uint64 { return v.peer.Session }
func (v View) Agent() string   { return v.peer.Agent }

// Read reads the counters.
func (v View) Read() stats.Peer {
	p := v.peer
	p.Links = make([]stats.Link, len(v.peer.Links))
	for i, l := range v.peer.Links {
		t := v.meters[i].read()
		l.Counts, l.InFlight, l.Rate, l.Idle, l.Queues = stats.Counts(t.Counts), t.InFlight, t.Rate, Idle(t.Last), v.meters[i].queues()
		p.Links[i] = l
	}
	return p
}

// Idle is the time since a completion at core.Now.
func Idle(last time.Duration) stats.Since {
	if last == 0 {
		return stats.Never
	}
	return stats.Since(max(core.Now()-last, 0))
}

// History holds the sessions that ended last.
type History struct {
	mu   sync.Mutex
	list []View
}

const mostHistory = 64

// Add notes a session that ends, as lost or closed. A session without links has counted nothing.
func (h *History) Add(v View, state string) {
	if len(v.meters) == 0 {
		return
	}
	v.peer.State = state
	for i := range v.peer.Links {
		v.peer.Links[i].Phase = "closed"
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.list) == mostHistory {
		h.list = append(h.list[:0], h.list[1:]...)
	}
	h.list = append(h.list, v) //limit:ended_sessions
}

// Besides returns the sessions of the history that are not in live.
func (h *History) Besides(live []View) (list []View) {
	known := map[*meter]bool{}
	for _, v := range live {
		for _, m := range v.meters {
			known[m] = true
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range h.list {
		if !known[v.meters[0]] {
			list = append(list, v)
		}
	}
	return list
}
