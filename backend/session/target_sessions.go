package session

// Sessions in which we are the target: peers write to and read from our memory and send us
// notifications. We may not have loaded the metadata of such a peer. The control channel calls Targets, which
// implements its peer.TargetHandler.

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"gorail/backend/core"
	"gorail/backend/limits"
	"gorail/backend/peer"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// NewTargets returns Targets without a session.
func NewTargets(cfg TargetConfig) *Targets {
	hit := func(l limits.Limit) func() { return func() { cfg.Limits.Hit(l) } }
	return &Targets{TargetConfig: cfg,
		turns: turns{
			opening:    limits.NewTurns(openers, limits.NewPace(atOnce, share), hit(limits.Opening)),               //limit:hellos
			fencing:    limits.NewTurns(fencers, nil, hit(limits.Fences)),                                          //limit:fences
			connecting: limits.NewTurns(connectors, nil, hit(limits.Connects)),                                     //limit:connects
			asking:     limits.NewTurns(askers, limits.NewPace(askAtOnce, shareOfAsking), hit(limits.KeyRequests)), //limit:key_requests
		},
		snapshots: newSnapshots(),
		ending:    make(chan struct{}, enders), freeing: make(chan struct{}, enders), all: map[*peer.In]*Target{}, byID: map[uint64]*Target{},
		names: names{}, byEngine: map[wire.EngineID][]*Target{}, progress: map[wire.EngineID]*notifProgress{}}
}

// SetNode sets the control channel. makeRoom asks it to drop a session if there is no room for another.
func (s *Targets) SetNode(n *peer.Node) { s.node.Store(n) }

// Message passes a session's message that the core leaves to Go.
func (s *Targets) Message(ev core.Event) {
	s.mu.RLock()
	t := s.byID[ev.ID]
	s.mu.RUnlock()
	if t != nil {
		t.events.Do(s.Life, func() { t.message(ev) })
	}
}

// Views are the sessions that have not ended, for the counters.
func (s *Targets) Views() (list []View) {
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
func (s *Targets) UseRail(r *rails.Rail) {
	for _, t := range s.All() {
		go t.wantStart(r) // outside of the serial events: Fence holds mu while it waits for those
	}
}

// DeviceChanged handles a network device that went down or came up. over are the rails on it, addr is their address.
// Initiators get a hint to suspect a lost address, and are asked to fence links that others can replace: a switch between the
// hosts hides from them that our device is down.
func (s *Targets) DeviceChanged(over []*rails.Rail, up bool, addr netip.Addr, why string) {
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
func (s *Targets) Close() {
	var all sync.WaitGroup
	for _, t := range s.All() {
		all.Go(t.close)
	}
	all.Wait()
}

// errLeaving is the answer of an engine that is being destroyed.
var errLeaving = &peer.RejectError{Code: wire.CodeEngine, Text: "the engine is being destroyed"}

var errHungUp = errors.New("the initiator hung up while its Hello waited for its turn")

// names counts the sessions of each agent's name by engine. A name is a label: engines prove their id, and nobody proves
// a name, except with peer_names=certified. Under Targets.mu.
type names map[string]map[wire.EngineID]int

// add counts a session. It reports whether another engine has a session under the same name.
func (n names) add(in *peer.In) (shared bool) {
	engines := n[in.Agent()]
	if engines == nil {
		engines = map[wire.EngineID]int{}
		n[in.Agent()] = engines
	}
	engines[in.Engine()]++
	return len(engines) > 1
}

func (n names) remove(in *peer.In) {
	engines := n[in.Agent()]
	if engines[in.Engine()]--; engines[in.Engine()] <= 0 {
		delete(engines, in.Engine())
	}
	if len(engines) == 0 {
		delete(n, in.Agent())
	}
}

// nameShared logs the first engine that begins a session under the name of another engine. Such an engine is served like
// any other: a process that restarts has its old name, also while its predecessor is only silent.
func (s *Targets) nameShared(in *peer.In) {
	s.NameConflicts.Add(1)
	if !s.warnedNames.Swap(true) {
		s.Log.Warn("two engines use one agent name: both are served, and their notifications carry the same name (counter name_conflicts)",
			"peer", in.Agent(), "engine", in.Engine().String())
	}
}

// mayUse refuses an engine that uses the name of a loaded peer, if the option strict_names is on.
func (s *Targets) mayUse(in *peer.In) error {
	if !s.Options.StrictNames {
		return nil
	}
	if id, loaded := s.Loaded(in.Agent()); loaded && id != in.Engine() {
		return &peer.RejectError{Code: wire.CodeIdentity,
			Text: "the target has loaded metadata of another engine under this agent's name (option strict_names): load the new metadata there first"}
	}
	return nil
}

// Limits of what a peer that holds our token may take. docs/options.md has the options.
const (
	mostEndpoints = 16384                  // of all peers; their descriptors may also take at most half of the process's limit
	mostOlder     = 4                      // sessions of one engine: over shared endpoints, older sessions stay for a while
	openers       = 2                      // Hellos that open endpoints at a time: each holds a thread, and a rail's lock
	fencers       = 16                     // fences at a time: one may wait a second for its peer's notifications
	connectors    = 128                    // connects at a time: each holds a thread, on RoCE up to 3 s if the neighbour is lost
	ownConnectors = 32                     // connects of one session at a time
	enders        = 16                     // sessions that close endpoints at a time
	share         = 8                      // opening endpoints takes 1/share of a core, after atOnce
	atOnce        = 300 * time.Millisecond // time for about a thousand endpoints on tcp
	askers        = 1                      // requests for keys at a time: one lock guards the registrations
	shareOfAsking = 2                      // requests for keys take 1/shareOfAsking of a core, after askAtOnce
	askAtOnce     = 4 * time.Second        // many peers may ask for all keys when they connect
)

// mostRoom is the limit of endpoints and of their descriptors.
func (s *Targets) mostRoom() limits.Amount {
	if s.Options.MaxEndpoints > 0 {
		return limits.Amount{Endpoints: s.Options.MaxEndpoints, Descriptors: 1 << 30}
	}
	l := syscall.Rlimit{Cur: 1024}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	return limits.Amount{Endpoints: mostEndpoints, Descriptors: int(min(l.Cur/2, 1<<30))}
}

// makeRoom checks a Hello's offers, and counts their endpoints until leaveRoom. A Hello that could be admitted later is
// refused as busy.
func (t *Target) makeRoom(offers []wire.EndpointOffer) error {
	s := t.s
	type pair struct{ rail, own uint8 }
	links, wants := map[pair]int{}, limits.Amount{}
	for _, o := range offers {
		if int(o.Rail) >= len(s.Links.Rails.List) {
			continue // open answers that we have no such rail
		}
		most := s.Options.QPsPerRail
		if s.Links.Rails.List[o.Rail].Can().SharedEndpoint {
			most = 1
		}
		p := pair{o.Rail, o.Own}
		if links[p]++; links[p] > most { //limit:links_per_pair
			s.Limits.Hit(limits.LinksPerPair)
			return &peer.RejectError{Code: wire.CodeLimit, Text: fmt.Sprintf("%d links on a pair of rails: %d are allowed here (option qps_per_rail)", links[p], most)}
		}
		wants = wants.Plus(oneEndpoint(s.Links.Rails.List[o.Rail]))
	}
	all := s.mostRoom()
	most := limits.Quarters(all)
	refusal := t.take(wants, most)
	if refusal.By == limits.ByNone {
		return nil
	}
	limit := fmt.Sprintf("the limit is %d, with %d file descriptors, half of what the process may have (ulimit -n)", all.Endpoints, all.Descriptors)
	if !wants.Within(most.Source) {
		return &peer.RejectError{Code: wire.CodeLimit, Text: fmt.Sprintf("the session wants %d endpoints, and one address may have three quarters of all: %s", wants.Endpoints, limit)}
	}
	if n := s.node.Load(); n != nil {
		n.MakeRoom(refusal)
	}
	whose := map[limits.Bound]string{limits.BySource: " of this address", limits.ByIdentity: " of this identity"}[refusal.By]
	return &peer.RejectError{Code: wire.CodeBusy, Text: "too many endpoints of peers" + whose + ": " + limit}
}

// oneEndpoint is what an endpoint of a peer takes.
func oneEndpoint(r *rails.Rail) limits.Amount {
	return limits.Amount{Endpoints: 1, Descriptors: r.Can().Descriptors}
}

// take counts endpoints until leaveRoom, or says why there is no room for them.
func (t *Target) take(wants limits.Amount, most limits.Most) limits.Refusal {
	refusal := t.s.room.Take(t.in.Owner(), wants, most, time.Now()) //limit:identity_endpoints
	switch refusal.By {
	case limits.ByNone:
		t.usage = t.usage.Plus(wants)
	case limits.ByIdentity:
		t.s.Limits.Hit(limits.IdentityEndpoints)
	default:
		t.s.Limits.Hit(limits.Endpoints)
	}
	return refusal
}

// begin adds the link over a pair of rails that the initiator's memory needs. Under t.mu.
func (t *Target) begin(num int, p wire.Pair) error {
	s := t.s
	if int(p.Rail) >= len(s.Links.Rails.List) {
		return fmt.Errorf("we have no rail %d", p.Rail)
	}
	rl := s.Links.Rails.List[p.Rail]
	over := slices.DeleteFunc(slices.Clone(t.links), func(l *Link) bool { return l.Rail != rl || l.Peer != int(p.Own) })
	if len(t.links) == core.MaxLinks || len(over) > 0 { //limit:links_per_pair
		s.Limits.Hit(limits.LinksPerPair)
		return fmt.Errorf("the session has %d links, %d of them on this pair of rails", len(t.links), len(over))
	}
	if t.take(oneEndpoint(rl), limits.Quarters(s.mostRoom())).By != limits.ByNone {
		return errors.New("too many endpoints of peers")
	}
	l := s.Links.add(num, int(p.Rail), int(p.Own))
	l.target, l.added, l.PeerID = t, true, p.ID
	t.links = append(t.links, l)
	return nil
}

// warnOf logs a warning that a peer has caused, within the limit of such lines.
func (s *Targets) warnOf(in *peer.In, text string, args ...any) {
	if !s.warnLimit.Warn(s.Log, time.Now(), text, append(args, "peer", in.Agent())...) {
		s.Limits.Hit(limits.LogLines)
	}
}
