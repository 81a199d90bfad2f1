package target

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/keylock"
	"gorail/backend/lifetime"
	"gorail/backend/link"
	"gorail/backend/notify"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/quota"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/staging"
	"gorail/backend/stats"
	"gorail/backend/wire"
)

// Session is a session in which we serve.
type Session struct {
	s    *Sessions
	in   *peer.In
	id   uint64
	sess core.Session

	events  lifetime.Serial // what the core has for us
	pace    *quota.Pace     // of what it asks for
	staged  *staging.Server
	order   order
	closing atomic.Bool // gone, for readers without mu

	mu      sync.Mutex
	gone    bool
	frozen  bool      // it takes no notifications in any more
	over    bool      // its links are gone
	lost    time.Time // when it ended, if it takes notifications in since
	log     told
	links   []*link.Link
	usage   quota.Usage              // of Sessions.room
	revokes map[uint64]chan struct{} // closed with the answer, or when the peer is gone
}

// told is what the log has of a session. Guarded by its mu.
type told struct {
	since  time.Time // it began then
	missed bool      // that no data connection came in
	known  bool      // that the peer is connected
	waits  bool      // for other links, to say so
}

// taken is how far an engine's notifications got in its sessions that have ended. Numbers go on from session to session, as long as the initiator
// says which one was before (Hello.After); what waits behind a gap then goes to the next session.
type taken struct {
	first, last uint64 // the sessions with these numbers
	asm         *notify.Assembler
	skip        map[uint64]bool
}

// order is the order of a session's notifications, while Go keeps it. Guarded by mu but for pending.
type order struct {
	pending atomic.Int64 // bytes of asm, in Sessions.pending

	mu       sync.Mutex
	asm      *notify.Assembler
	skip     map[uint64]bool // numbers that the sender gave up
	handled  uint64          // messages that the core has handed to Go
	draining bool            // somebody waits until
	drainTo  uint64          // all notifications below it have arrived
	refused  bool            // it sent something impossible, or the session is frozen: nothing more is taken
	first    uint64          // the initiator's session in which the numbers began
}

// Config is what the sessions need of their engine.
type Config struct {
	Options *option.Options
	Log     *slog.Logger
	Life    *lifetime.Engine
	Core    *core.Core
	Links   *link.Set
	Regions *region.Registry
	Staging *staging.Side
	Past    *link.History
}

// Sessions are all sessions of peers. Safe for concurrent use.
//
// Locks, in the order in which they may be taken: the turn of an engine's Hello, Session.mu, Session.order.mu, Sessions.mu.
type Sessions struct {
	Config
	node atomic.Pointer[peer.Node]

	hellos  keylock.Locks[wire.EngineID] // one session of an engine begins at a time
	room    quota.Places
	opening *quota.Turns  // Hellos
	fencing *quota.Turns  // fences of peers
	ending  chan struct{} // sessions that close endpoints
	freeing chan struct{} // and that free what these leave: not behind others that close theirs
	few     quota.Lines   // lines in the log that peers cause
	pending atomic.Int64  // bytes of notifications that miss a part, or an earlier one

	mu       sync.RWMutex
	all      map[*peer.In]*Session
	byID     map[uint64]*Session
	byEngine map[wire.EngineID][]*Session // by the peer's
	taken    map[wire.EngineID]*taken     // how far notifications got in sessions that have ended
}

// open makes our end of a link.
func (t *Session) open(num int, o wire.EndpointOffer) (*link.Link, error) {
	if int(o.Rail) >= len(t.s.Links.Rails.List) {
		return nil, fmt.Errorf("we have no rail %d", o.Rail)
	}
	l, err := t.s.Links.Open(t, num, int(o.Rail), int(o.Own))
	l.PeerID = o.ID
	t.links = append(t.links, l)
	if err == nil && len(o.Addr) == 0 {
		err = errors.New("the peer has no endpoint for it")
	}
	if err == nil {
		err = t.s.Links.Connect(l, t.sess, o, t.from(), core.Target, false)
	}
	if err != nil {
		_ = t.s.Links.Quiesce(l) // it is in the log
	}
	return l, err
}

// drop ends the session's access to our memory and its links.
func (t *Session) drop() {
	if quiet := t.s.Links.Drop(t.links, t.sess, -3, nil); quiet == nil {
		t.leaveRoom()
	} else {
		t.s.Life.Go(func() { <-quiet; t.leaveRoom() })
	}
	t.links = nil
}

// from are addresses that the peer's connections may come from, besides those of its endpoints.
func (t *Session) from() []netip.Addr { return []netip.Addr{t.in.Remote()} }

// view: under mu.
func (t *Session) view() link.View {
	return link.NewView(stats.Peer{Agent: t.in.Agent(), Engine: t.in.Engine().String(), Direction: stats.Target, State: "ready"},
		t.links, func(int) string { return "" })
}

// reaches says that a link of the session is on a rail that has the region.
func (t *Session) reaches(g *region.Region) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gone || slices.ContainsFunc(t.links, func(l *link.Link) bool { return l.Up && g.Rails.Load()&(1<<l.Rail.Index) != 0 })
}

// Revoke tells the peer that regions go away; the channel closes with its answer. Implements region.Holder.
func (t *Session) Revoke(regions []uint64) <-chan struct{} {
	done := make(chan struct{})
	id := t.s.Life.NextID()
	t.mu.Lock()
	if t.gone {
		close(done)
		t.mu.Unlock()
		return done
	}
	t.revokes[id] = done
	t.mu.Unlock()
	t.in.Revoke(id, regions)
	return done
}

// wantStart asks the initiator for the links over a rail that has just come up.
func (t *Session) wantStart(rl *rails.Rail) {
	if !t.s.Life.Enter() {
		return
	}
	defer t.s.Life.Leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.links {
		if !t.gone && !t.frozen && l.Rail == rl && !l.Up {
			t.in.WantFence(uint8(l.Num), l.Epoch)
		}
	}
}

// leaveRoom is called when the endpoints are closed. It may be called again.
func (t *Session) leaveRoom() {
	t.s.room.Give(t.in.Source(), t.usage)
	t.usage = quota.Usage{}
}

// Of is the session of the control channel's; nil: it has ended, or has not begun.
func (s *Sessions) Of(in *peer.In) *Session {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.all[in]
}

// All are the sessions that there are.
func (s *Sessions) All() []*Session {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Values(s.all))
}
