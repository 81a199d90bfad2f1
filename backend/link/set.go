package link

import (
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gorail/backend/core"
	"gorail/backend/failover"
	"gorail/backend/lifetime"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// GoodbyeWait is the least time that the goodbye of a session waits for operations in flight.
const GoodbyeWait = 10 * time.Second

// Set is all links of an engine.
type Set struct {
	Rails          *rails.Set
	Log            *slog.Logger
	Life           *lifetime.Engine
	ConnectTimeout time.Duration // option connect_timeout

	mu    sync.Mutex
	links map[uint64]*Link // those that are in the core
}

// Event hands an event of the core to the session of the link; links that are gone have none.
func (s *Set) Event(ev core.Event) {
	s.mu.Lock()
	l := s.links[ev.ID]
	s.mu.Unlock()
	if l != nil {
		l.owner.LinkEvent(l, ev.Seq, ev.Code)
	}
}

// Open opens an endpoint; the core's link follows when the peer's address is known. With an error the link is there without one, for
// when the rail's device comes up.
func (s *Set) Open(owner Owner, num, rail, peerRail int) (l *Link, err error) {
	r := s.Rails.List[rail]
	l = &Link{ID: s.Life.NextID()<<32 | uint64(rand.Uint32()), Num: num, Rail: r, Peer: peerRail, owner: owner, meter: &meter{}}
	l.OwnRail = rail
	if l.EP, err = r.OpenEndpoint(); err != nil {
		l.EP = nil
		l.Enter(failover.BackingOff, time.Now())
	}
	return l, err
}

// Reach names the peer's endpoint, which may come from these addresses as well. Implements Endpoint.Connect.
func (s *Set) Reach(ep provider.Endpoint, addr []byte, from []netip.Addr) error {
	filter, ok := ep.(provider.AcceptFilter)
	if ok {
		filter.Admit(from)
	}
	err := ep.Connect(addr)
	switch {
	case !ok:
	case err != nil:
		filter.Shut()
	default:
		s.Life.After(max(s.ConnectTimeout, failover.MostUnproved+2*failover.ProbeTime), filter.Shut) // the peer's link may rest first
	}
	return err
}

// Connect names the peer's endpoint and starts the link. from are addresses of the peer's.
func (s *Set) Connect(l *Link, sess core.Session, o wire.EndpointOffer, from []netip.Addr, role core.Role, probe bool) error {
	if err := s.Reach(l.EP, o.Addr, from); err != nil {
		return err
	}
	return s.Attach(l, sess, o.ID, role, probe)
}

// Attach starts a link whose endpoint is connected.
func (s *Set) Attach(l *Link, sess core.Session, peerID uint64, role core.Role, probe bool) error {
	l.NoteEnds()
	slot := l.Peer
	if role == core.Target {
		slot = 0 // a target uses no keys of the peer's
	}
	s.mu.Lock()
	if s.links == nil {
		s.links = map[uint64]*Link{}
	}
	s.links[l.ID] = l
	s.mu.Unlock()
	c, err := sess.NewLink(l.Rail.Index, slot, l.EP.Core(), l.ID, peerID, role, probe)
	l.Core, l.Up = c, c.Exists()
	l.meter.begin(c)
	return err // Drop closes the endpoint, then the link
}

// Quiesce ends all access through the link's endpoint: on return the library touches no local buffer for it, and
// nobody reaches our memory through it. A link of a shared endpoint only stops. An error: a stopped process of this host may still make a copy.
func (s *Set) Quiesce(l *Link) (err error) {
	if l.Up {
		l.Core.Stop()
	}
	if l.Shared() {
		return nil // it must drain first: see Drop, and the drain of a session
	}
	if l.EP != nil {
		if err = l.EP.Close(); err != nil {
			s.Log.Warn("closing an endpoint", "rail", l.Rail.Name(), "err", err)
		}
		l.EP = nil
	}
	if l.Up {
		l.Core.Reap()
	}
	return err
}

// stillPosted says that something of theirs is, which only links of shared endpoints can say once they have stopped.
func stillPosted(links []*Link) bool {
	return slices.ContainsFunc(links, func(l *Link) bool { return !l.Drained() })
}

// Farewell is what the peer still has to confirm of links that are dropped.
type Farewell interface {
	Ask(links []*Link) // once they are quiesced
	Waits() bool       // for an answer
}

// Drop ends a session's links for good; what is queued on them ends with the status. Links of shared endpoints drain first, and the peer
// answers a FENCE for those on which something failed, behind the call: until then their transfers are in progress, for memory is in use.
// The channel is closed when all is quiet; nil: it is already. bye may be nil.
func (s *Set) Drop(links []*Link, sess core.Session, status int32, bye Farewell) <-chan struct{} {
	for _, l := range links {
		_ = s.Quiesce(l) // in the log
		s.mu.Lock()
		delete(s.links, l.ID)
		s.mu.Unlock()
	}
	if bye != nil {
		bye.Ask(links)
	}
	if stillPosted(links) || bye != nil && bye.Waits() {
		drained := make(chan struct{})
		s.Life.Go(func() {
			s.dropLate(links, sess, status, bye)
			close(drained)
		})
		return drained
	}
	s.free(links, sess, status)
	return nil
}

// dropLate waits until the links are quiet; when the engine closes, not for long.
func (s *Set) dropLate(links []*Link, sess core.Session, status int32, bye Farewell) {
	const atClose = 2 * time.Second
	var closing time.Time
	for ; stillPosted(links) || bye != nil && bye.Waits(); time.Sleep(time.Millisecond) {
		if closing.IsZero() && s.Life.Closed() {
			closing = time.Now()
		}
		if !closing.IsZero() && time.Since(closing) > atClose {
			s.Log.Error("operations of a peer that is gone have not completed; their memory may still be touched")
			break
		}
	}
	s.free(links, sess, status)
}

// free ends links that are quiet. All of them end before the first is let go: a transfer's last part may still hand its
// notification to another's.
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
				s.Log.Warn("leaving an endpoint", "rail", l.Rail.Name(), "err", err)
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
