// Package target is the sessions in which this side serves: peers write to and read from our memory and send us notifications. A peer may be one
// whose metadata we never loaded. The control channel calls Sessions, which is its peer.TargetHandler.
package target

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"gorail/backend/core"
	"gorail/backend/keylock"
	"gorail/backend/lifetime"
	"gorail/backend/link"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/quota"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/staging"
	"gorail/backend/wire"
)

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

// New has no session.
func New(cfg Config) *Sessions {
	return &Sessions{Config: cfg, opening: quota.NewTurns(openers, quota.NewPace(atOnce, share)), fencing: quota.NewTurns(fencers, nil),
		ending: make(chan struct{}, enders), freeing: make(chan struct{}, enders), all: map[*peer.In]*Session{}, byID: map[uint64]*Session{},
		byEngine: map[wire.EngineID][]*Session{}, taken: map[wire.EngineID]*taken{}}
}

// SetNode names the control channel, which drops a session where there is no room for another.
func (s *Sessions) SetNode(n *peer.Node) { s.node.Store(n) }

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

// Message has a message of a session's that the core leaves to Go.
func (s *Sessions) Message(ev core.Event) {
	s.mu.RLock()
	t := s.byID[ev.ID]
	s.mu.RUnlock()
	if t != nil {
		t.events.Do(s.Life, func() { t.message(ev) })
	}
}

// Views are the sessions as the counters have them.
func (s *Sessions) Views() (list []link.View) {
	for _, t := range s.All() {
		t.mu.Lock()
		if !t.gone {
			list = append(list, t.view())
		}
		t.mu.Unlock()
	}
	return list
}

// UseRail asks the initiators for the links over a rail that has just come up.
func (s *Sessions) UseRail(r *rails.Rail) {
	for _, t := range s.All() {
		go t.wantStart(r) // not among the events: Fence holds mu while it waits for those
	}
}

// DeviceChanged says that a network device went down or came up: rails are those over it, addr is their address. Initiators are told to doubt it.
func (s *Sessions) DeviceChanged(over []*rails.Rail, up bool, addr netip.Addr, why string) {
	for _, t := range s.All() {
		if !up && addr.IsValid() {
			t.in.Suspect(addr, why)
		}
		for _, r := range over {
			if up {
				go t.wantStart(r) // see UseRail
			}
		}
	}
}

// Close ends the access of all peers.
func (s *Sessions) Close() {
	var all sync.WaitGroup
	for _, t := range s.All() {
		all.Go(t.close)
	}
	all.Wait()
}

// errLeaving is the answer of an engine that will be gone in a moment.
var errLeaving = &peer.RejectError{Code: wire.CodeEngine, Text: "the engine is being destroyed"}

var errHungUp = errors.New("the initiator hung up while its Hello waited for its turn")
