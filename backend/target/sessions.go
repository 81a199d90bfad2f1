// Package target is the sessions in which this side serves: peers write to and read from our memory and send us notifications. A peer may be one
// whose metadata we never loaded. The control channel calls Sessions, which is its peer.TargetHandler.
package target

import (
	"errors"
	"net/netip"
	"sync"

	"gorail/backend/core"
	"gorail/backend/link"
	"gorail/backend/peer"
	"gorail/backend/quota"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// New has no session.
func New(cfg Config) *Sessions {
	return &Sessions{Config: cfg, opening: quota.NewTurns(openers, quota.NewPace(atOnce, share)), fencing: quota.NewTurns(fencers, nil),
		ending: make(chan struct{}, enders), freeing: make(chan struct{}, enders), all: map[*peer.In]*Session{}, byID: map[uint64]*Session{},
		byEngine: map[wire.EngineID][]*Session{}, taken: map[wire.EngineID]*taken{}}
}

// SetNode names the control channel, which drops a session where there is no room for another.
func (s *Sessions) SetNode(n *peer.Node) { s.node.Store(n) }

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
