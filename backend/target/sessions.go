// Package target holds the sessions in which we are the target: peers write to and read from our memory and send us
// notifications. We may not have loaded the metadata of such a peer. The control channel calls Sessions, which
// implements its peer.TargetHandler.
package target

import (
	"errors"
	"net/netip"
	"sync"

	"gorail/backend/core"
	"gorail/backend/limits"
	"gorail/backend/link"
	"gorail/backend/peer"
	"gorail/backend/quota"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// New returns Sessions without a session.
func New(cfg Config) *Sessions {
	hit := func(l limits.Limit) func() { return func() { cfg.Limits.Hit(l) } }
	return &Sessions{Config: cfg,
		turns: turns{
			opening:    quota.NewTurns(openers, quota.NewPace(atOnce, share), hit(limits.Opening)),               //limit:hellos
			fencing:    quota.NewTurns(fencers, nil, hit(limits.Fences)),                                         //limit:fences
			connecting: quota.NewTurns(connectors, nil, hit(limits.Connects)),                                    //limit:connects
			asking:     quota.NewTurns(askers, quota.NewPace(askAtOnce, shareOfAsking), hit(limits.KeyRequests)), //limit:key_requests
		},
		snapshots: newSnapshots(),
		ending:    make(chan struct{}, enders), freeing: make(chan struct{}, enders), all: map[*peer.In]*Session{}, byID: map[uint64]*Session{},
		names: names{}, byEngine: map[wire.EngineID][]*Session{}, progress: map[wire.EngineID]*notifProgress{}}
}

// SetNode sets the control channel. makeRoom asks it to drop a session if there is no room for another.
func (s *Sessions) SetNode(n *peer.Node) { s.node.Store(n) }

// Message passes a session's message that the core leaves to Go.
func (s *Sessions) Message(ev core.Event) {
	s.mu.RLock()
	t := s.byID[ev.ID]
	s.mu.RUnlock()
	if t != nil {
		t.events.Do(s.Life, func() { t.message(ev) })
	}
}

// Views are the sessions that have not ended, for the counters.
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
		go t.wantStart(r) // outside of the serial events: Fence holds mu while it waits for those
	}
}

// DeviceChanged handles a network device that went down or came up. over are the rails on it, addr is their address.
// Initiators get a hint to suspect a lost address, and are asked to fence links that others can replace: a switch between the
// hosts hides from them that our device is down.
func (s *Sessions) DeviceChanged(over []*rails.Rail, up bool, addr netip.Addr, why string) {
	for _, t := range s.All() {
		if !up && addr.IsValid() {
			t.in.Suspect(addr, why)
		}
		for _, r := range over {
			if up {
				go t.wantStart(r) // see UseRail
			} else {
				go t.wantFences(r)
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

// errLeaving is the answer of an engine that is being destroyed.
var errLeaving = &peer.RejectError{Code: wire.CodeEngine, Text: "the engine is being destroyed"}

var errHungUp = errors.New("the initiator hung up while its Hello waited for its turn")
