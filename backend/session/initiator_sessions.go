package session

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/peer"
	"gorail/backend/rails"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// NewInitiators returns Initiators without a session. node dials; own, encoded as raw, is our connection blob.
func NewInitiators(cfg InitiatorConfig, node *peer.Node, own wire.ConnBlob, raw []byte) *Initiators {
	return &Initiators{InitiatorConfig: cfg, node: node, own: own, raw: raw, stopDelivery: make(chan struct{}), byName: map[string]*Initiator{},
		disconnecting: map[*Initiator]*disconnection{}}
}

// Load finds or makes the session for a peer's blob, and begins to connect. The same blob again changes nothing. A
// different blob, or a blob of a dead peer, replaces the session. One caller at a time loads a name: two would make two
// sessions, and the later session would end the earlier one with its accepted notifications.
func (s *Initiators) Load(name string, raw []byte, blob wire.ConnBlob) (*Initiator, error) {
	defer s.loads.Lock(name)()
	old := s.named(name)
	if old != nil && bytes.Equal(old.raw, raw) && old.usable() {
		return old, nil
	}
	if old == nil {
		if r := s.reclaim(name, raw); r != nil {
			return r, nil
		}
	}
	r, err := s.newSession(name, bytes.Clone(raw), blob)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	old, d := s.removeNameLocked(name, "replaced by new metadata") // Disconnect may have run meanwhile
	s.byName[name] = r
	s.mu.Unlock()
	if old != nil {
		old.disconnect(d)
	}
	r.connect()
	return r, nil
}

func (s *Initiators) named(name string) *Initiator {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byName[name]
}

// Engine returns the engine of the metadata that is loaded under a name. nil receivers have loaded nothing.
func (s *Initiators) Engine(name string) (id wire.EngineID, loaded bool) {
	if s == nil {
		return id, false
	}
	if r := s.named(name); r != nil {
		return r.blob.Engine, true
	}
	return id, false
}

// Of finds a session by the agent's name. Our own name gives the session with ourselves, made on first use. nil: there
// is none.
func (s *Initiators) Of(name string) *Initiator {
	r := s.named(name)
	if r == nil && name == s.own.Agent {
		r, _ = s.Load(name, s.raw, s.own)
	}
	return r
}

// Disconnect forgets a peer and returns without waiting for it. Transfers in flight to the peer end in an error. READs write
// nothing more: what has not drained within ReleaseWait loses its endpoint. Accepted notifications still arrive: the session stays in the background until the peer has them, at most for peer_timeout.
func (s *Initiators) Disconnect(name string) error {
	r, d := s.removeName(name, "disconnected by the application")
	if r == nil {
		return errcode.UnknownPeer.Errorf("disconnect: agent %q is not loaded", name)
	}
	r.disconnect(d)
	return nil
}

// All are all sessions, including the disconnecting ones.
func (s *Initiators) All() []*Initiator {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.AppendSeq(slices.Collect(maps.Values(s.byName)), maps.Keys(s.disconnecting))
}

// Views are the connecting and ready sessions, for the counters.
func (s *Initiators) Views() (list []View) {
	for _, r := range s.All() {
		r.mu.RLock()
		if r.state == connecting || r.state == ready {
			list = append(list, r.view())
		}
		r.mu.RUnlock()
	}
	return list
}

// Watched is what Watch has found.
type Watched struct {
	More   bool         // there is something to watch
	Closer bool         // Overdue may look at all peers, and a link of some can be cut
	Owing  []*Initiator // the peers that owe something that does not come
}

// mostCloser bounds the peers that Overdue looks at every 20 ms. At 3 to 6 us for each, 100 take 1.5 to 3 % of a core while there are transfers.
const mostCloser = 100

// Watch checks the links of every peer with more than one link, and the transfers that revocations wait for. Peers are told what was moved.
func (s *Initiators) Watch() (w Watched) {
	all := s.All()
	for _, r := range all {
		r.tellMoves()
		owed, far := r.overdue()
		if owed {
			w.Owing = append(w.Owing, r)
		}
		w.Closer = w.Closer || far && len(all) <= mostCloser
		watches := r.peer.Links() > 1 || r.revoking()
		w.More = w.More || watches
		if watches && !r.watched.Swap(true) {
			r.peer.Events.Do(s.Life, func() {
				defer r.watched.Store(false)
				r.FinishRevokes() // of transfers that are done but for their notification
				if r.peer.Links() > 1 {
					r.fenceStuck()
					r.relink()
				}
			})
		}
	}
	return w
}

// Overdue asks peers for what they owe, and keeps those that still do: of all peers, or of those that did when there are too many.
func (s *Initiators) Overdue(w *Watched) {
	if w.Closer {
		w.Owing = s.All()
	}
	w.Owing = slices.DeleteFunc(w.Owing, func(r *Initiator) bool { owed, _ := r.overdue(); return !owed })
}

// UseRail starts the links over a rail that has joined.
func (s *Initiators) UseRail(rl *rails.Rail) {
	for _, r := range s.All() {
		r.peer.Events.Do(s.Life, func() { r.startLinks(rl) })
	}
}

// DeviceChanged handles a network device that went down or came up. addr is the address of the rail on the device.
func (s *Initiators) DeviceChanged(name string, up bool, addr netip.Addr, why string) {
	for _, r := range s.All() {
		r.peer.Events.Do(s.Life, func() { r.deviceChanged(name, up, addr, why) })
	}
}

// Farewell ends all sessions concurrently, after the peers have the accepted notifications. It waits at most
// transfer.Farewell.
func (s *Initiators) Farewell() {
	for _, name := range s.names() {
		if r, d := s.removeName(name, "engine closed"); r != nil {
			s.Life.Go(func() { r.disconnect(d) }) // its lock may be held while an endpoint of a stopped peer closes
		}
	}
	timer := time.AfterFunc(transfer.Farewell, func() { close(s.stopDelivery) })
	for _, d := range s.leaving() {
		<-d.ended
	}
	if timer.Stop() {
		close(s.stopDelivery)
	}
}

// Close ends the sessions that were made since Farewell.
func (s *Initiators) Close() {
	s.mu.Lock()
	left := s.byName
	s.byName = map[string]*Initiator{}
	s.mu.Unlock()
	var all sync.WaitGroup
	for _, r := range left {
		all.Go(func() { r.close(errClosed, nil) })
	}
	all.Wait()
}

func (s *Initiators) names() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Keys(s.byName))
}

// leaving are the disconnections in progress.
func (s *Initiators) leaving() []*disconnection {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Values(s.disconnecting))
}

// LoadRemote enters a range of a peer. Its keys are requested on the control channel in the background. For a peer whose
// connection info was never loaded it returns ErrNotFound and creates nothing.
func (s *Initiators) LoadRemote(name string, addr, length, dev uint64, mem int32, blob []byte) (uint64, error) {
	r := s.Of(name)
	if r == nil {
		return 0, errcode.UnknownPeer.Errorf("load metadata: no connection info of agent %q is loaded", name)
	}
	b, err := wire.DecodeRegion(blob)
	if err != nil {
		return 0, errcode.BadMetadata.Errorf("metadata blob of agent %q: %w", name, err)
	}
	if b.Engine != r.blob.Engine {
		return 0, errcode.StaleMetadata.Errorf("metadata blob of agent %q belongs to another engine: the agent was restarted; load the agent's new metadata", name)
	}
	if b.Addr != addr || b.Len != length || b.Dev != dev || b.Mem != mem {
		return 0, errcode.BadMetadata.Errorf("metadata blob of agent %q names %#x+%d, its descriptor %#x+%d", name, b.Addr, b.Len, addr, length)
	}
	g, err := r.load(wire.Claim{Range: wire.Range{Addr: addr, Len: length, Dev: dev, Mem: mem}, Cap: b.Cap})
	if err != nil {
		return 0, err
	}
	return g.ID, nil
}

// Inside is the state of a session that Inspect shows. Its reader must not change it.
type Inside struct {
	Links     []*Link
	NotifLink *Link // carries the notifications without a transfer
	Core      core.Session
	Has       bool // Core exists
	Regions   int  // loaded ranges of the peer, and their slices
	Keyed     int  // regions of the peer with keys
	Wanted    int  // regions whose keys are still to be requested
	// regions of each key request that waits for its answer
	Requests []int
	Failed   int       // failed dials since the last session that was ready
	Revoking int       // revocations that wait
	Looked   time.Time // when stuck links were looked for last
}

// Inspect calls f under the session's lock, so nothing changes meanwhile.
func (r *Initiator) Inspect(f func(in Inside)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in := Inside{Links: r.links, NotifLink: r.notifLink, Core: r.sess, Has: r.hasSess, Regions: len(r.regions), Keyed: len(r.byTarget), Wanted: len(r.wanted), Failed: r.dials.n,
		Revoking: len(r.revokes), Looked: r.failover.looked}
	for _, list := range r.requests {
		in.Requests = append(in.Requests, len(list))
	}
	f(in)
}

// Keep queues a notification for the next connection, as the loss of a connection does. It ignores the limit
// notif_queue.
func (r *Initiator) Keep(msg []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notifs = append(r.notifs, core.Taken{Body: msg})
	r.notifLen += notifCost(msg)
}

// GiveUp ends the connection, as a failure of this side does.
func (r *Initiator) GiveUp(err error) {
	r.mu.RLock()
	c := r.conn
	r.mu.RUnlock()
	c.GiveUp(err)
}

// Forget removes a name without a message to the peer. Tests simulate another process in our place with it.
func (s *Initiators) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byName, name)
}

// Leaving is the number of sessions that the application has disconnected and that have not ended.
func (s *Initiators) Leaving() int { return len(s.leaving()) }

// Path names the rails in use.
func (r *Initiator) Path() []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.inUse()
}
