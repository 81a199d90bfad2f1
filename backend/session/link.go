package session

// A link is an endpoint on one rail, and the core's posts over it. A session owns its links and guards them with its own lock. This file
// passes the core's events to their sessions, and opens, starts, quiesces and frees links.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gorail/backend/core"
	"gorail/backend/failpoint"
	"gorail/backend/host"
	"gorail/backend/limits"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/trust"
)

// Link is a session's endpoint on one rail, on either side. A pair of rails may have several. Guarded by its session's
// lock.
type Link struct {
	LinkState

	ID     uint64
	Num    int // index among the Hello's offers; both sides identify the link by this number
	Rail   *rails.Rail
	Peer   int               // index of the peer's rail
	PeerID uint64            // the peer's ID of the link
	EP     provider.Endpoint // nil: no endpoint is open
	Core   core.Link         // valid if Up

	slot int // of the peer's rail in the core's table of keys
	beginning

	FenceID uint64      // of the FENCE without an answer; 0: there is none
	Answer  *core.Proof // of the last FENCE's answer: nothing older lands any more. nil since Rebind, or no FENCE was answered

	Connects core.Serial // connects endpoints to the peer's, which may take seconds. Safe without the lock

	oneHost  bool   // see OneHost
	endsText string // both ends of the link, for messages; "": the fabric does not report them
	Fault    error  // the endpoint's last error, while not proved

	initiator *Initiator // its session, or
	target    *Target    // its session; the other is nil
	meter     *meter
	lines     limits.Lines
}

// beginning says how a link has begun, or begins.
type beginning struct {
	added      bool // it was not in the Hello: see Initiator.Pair
	CameUpLate bool // the link came up during the session: keys of earlier regions may lack the peer's rail
	StartAgain bool // the peer's rail came up while the link was being started
	trying
}

// peerName is the peer's agent, for the log.
func (l *Link) peerName() string {
	if l.initiator != nil {
		return l.initiator.name
	}
	return l.target.in.Agent()
}

// Shared returns true if the endpoint serves other peers as well. A fence does not close such an endpoint.
func (l *Link) Shared() bool { return l.Rail.Can().SharedEndpoint }

// Level is the level of the link's log lines: debug after the log has said that nothing comes over the link.
func (l *Link) Level() slog.Level {
	if l.UnprovedLogged {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// Drained returns true if the link has nothing posted.
func (l *Link) Drained() bool { return !l.Up || l.Core.Stats().InflightOps == 0 }

// Count reads the counters of a link that is up, for package failover. Operations that wait for a GPU of ours alone count as none in flight.
func (l *Link) Count() Count {
	s := l.Core.Stats()
	n := Count{Completions: s.Completions, Errors: s.Errors, InFlight: uint64(s.InflightOps)}
	if g, ok := l.EP.(provider.Listener); ok && n.InFlight > 0 {
		n.InFlight -= min(n.InFlight, uint64(g.Copying())) // nothing is owed for them
	}
	return n
}

// Rebind continues the link with its present endpoint.
func (l *Link) Rebind(proof core.Proof, probe bool) error {
	l.Answer = nil
	return l.Core.Rebind(l.EP.Core(), l.Epoch, proof, probe)
}

// Renew opens another endpoint for a quiesced link.
func (l *Link) Renew() error {
	l.Epoch++
	ep, err := l.Rail.OpenEndpoint()
	if err != nil {
		return err
	}
	l.EP = ep
	return nil
}

// NoteEnds keeps both ends of the link for messages, as address and port if the endpoint has them.
func (l *Link) NoteEnds() {
	if listener, ok := l.EP.(provider.Listener); ok {
		if own, peer := listener.Ends(); own != "" && peer != "" {
			l.endsText, l.oneHost = fmt.Sprintf(" (%s to %s)", own, peer), oneHost(own, peer)
		}
	}
}

// oneHost reports that both addresses, with ports, are the same or the loopback interface's: no firewall is between them.
func oneHost(own, peer string) bool {
	a, err := netip.ParseAddrPort(own)
	b, bad := netip.ParseAddrPort(peer)
	return err == nil && bad == nil && (a.Addr().Unmap() == b.Addr().Unmap() || a.Addr().Unmap().IsLoopback() && b.Addr().Unmap().IsLoopback())
}

// OneHost reports that both ends of the link are known to be on this host, over one interface.
func (l *Link) OneHost() bool { return l.oneHost }

// BusyHost says what may hold up a link whose ends are on one host.
const BusyHost = "both ends are on this host: is a process stopped, or are all processors busy?"

// Ends names the link for messages.
func (l *Link) Ends() string { return l.Rail.Name() + l.endsText }

// Prove notes that messages go both ways, and admits no further connection.
func (l *Link) Prove() {
	l.LinkState.Prove()
	l.ShutFilter()
}

// ShutFilter admits no further connections, because messages go both ways.
func (l *Link) ShutFilter() {
	l.Fault = nil
	if listener, ok := l.EP.(provider.Listener); ok {
		listener.Shut()
	}
}

// Reason is the known cause why a link is not proved, and what may help.
func (l *Link) Reason() string {
	why := "no answer"
	if l.Fault != nil {
		why = l.Fault.Error()
	}
	if l.endsText == "" || host.Exhausted(l.Fault) {
		return l.Ends() + ": " + why
	}
	if l.oneHost {
		return l.Ends() + ": " + why + "; " + BusyHost
	}
	return l.Ends() + ": " + why + "; a firewall? Option data_port of the peer sets the ports that the firewall must admit. A flood of them? The peer's limits.tcp_openings counts it."
}

// Fenced counts a fence of the link and its rail.
func (l *Link) Fenced() {
	l.meter.fences.Add(1)
	l.Rail.Fences.Add(1)
}

// Stalled counts a stall of the link and its rail.
func (l *Link) Stalled() {
	l.meter.stalls.Add(1)
	l.Rail.Stalls.Add(1)
}

// InUse are the links that are up or have an endpoint.
func InUse(links []*Link) []*Link {
	return slices.DeleteFunc(slices.Clone(links), func(l *Link) bool { return !l.Up && l.EP == nil })
}

// Proved are the proved links.
func Proved(links []*Link) []*Link {
	return slices.DeleteFunc(slices.Clone(links), func(l *Link) bool { return !l.Proved })
}

// Names are the names of the links' rails, each once.
func Names(links []*Link) (out []string) {
	for _, l := range links {
		if name := l.Rail.Name(); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// burstLines is how many lines of one link the log takes at once. From then on it takes one line a second.
const burstLines = 10

// Log logs a line about the link. A link that goes down and up all the time has one line a second: the attribute
// suppressed counts the lines before that were not written.
func (l *Link) Log(log *slog.Logger, level slog.Level, text string, args ...any) {
	if !log.Enabled(context.Background(), level) {
		return
	}
	lost, ok := l.lines.Next(time.Now())
	if !ok {
		return
	}
	if lost > 0 {
		args = append(args, "suppressed", lost)
	}
	log.Log(context.Background(), level, text, args...)
}

// Channel is what the links of a session have of its control channel.
type Channel struct {
	Role    core.Role                                // ours
	KeySalt [16]byte                                 // of the session
	Secret  func(n trust.LinkName) *trust.LinkSecret // what both ends of a link have, and nobody else
	Handles askHandles                               // of memory of the peer's GPUs; nil: we are the target
}

// askHandles asks the peer for handles of a region on a rail of its.
type askHandles func(ctx context.Context, rail uint8, key, base uint64, first uint32) (provider.Handles, error)

// Security returns what only the two ends of a link know in its present epoch. Both ends must have given the link the same
// epoch and each other's ID. Under the lock of the link's session.
func (c Channel) Security(l *Link) provider.Security {
	n := trust.LinkName{Fabric: l.Rail.Device().Fabric, InitiatorRail: uint8(l.Rail.Index), TargetRail: uint8(l.Peer), InitiatorID: l.ID, TargetID: l.PeerID,
		Epoch: l.Epoch}
	if c.Role == core.Target {
		n.InitiatorRail, n.TargetRail, n.InitiatorID, n.TargetID = n.TargetRail, n.InitiatorRail, n.TargetID, n.InitiatorID
	}
	s := provider.Security{Initiator: c.Role == core.Initiator, Keys: c.KeySalt, Link: func(t trust.Ticket) *trust.LinkSecret {
		named := n
		named.Ticket = t
		return c.Secret(named)
	}}
	if ask, rail := c.Handles, uint8(l.Peer); ask != nil {
		s.Handles = func(ctx context.Context, key, base uint64, first uint32) (provider.Handles, error) {
			return ask(ctx, rail, key, base, first)
		}
	}
	return s
}

// GoodbyeWait is the least time that the goodbye of a session waits for operations in flight.
const GoodbyeWait = 10 * time.Second

// Set holds all links of an engine.
type Set struct {
	Rails          *rails.Set
	Log            *slog.Logger
	Life           *core.Lifetime
	ConnectTimeout time.Duration // option connect_timeout

	mu    sync.Mutex
	links map[uint64]*Link             // the links that are in the core
	shuts map[provider.Endpoint]func() // cancel the timers of shutLater
}

// Event passes an event of the core to the session of its link: the first message has come in over a new link (code 0), or the link has
// stopped with an error. It drops events of links that are gone, and does not wait.
func (s *Set) Event(ev core.Event) {
	s.mu.Lock()
	l := s.links[ev.ID]
	s.mu.Unlock()
	switch {
	case l == nil:
	case l.initiator != nil:
		l.initiator.linkEvent(l, ev.Seq, ev.Code)
	default:
		l.target.linkEvent(l, ev.Seq, ev.Code)
	}
}

// Open opens an endpoint. The core's link follows when the peer's address is known. With an error Open returns a link
// without an endpoint, for when the rail's device comes up. The caller sets the link's session.
func (s *Set) Open(num, rail, peerRail int) (l *Link, err error) {
	l = s.add(num, rail, peerRail)
	if l.EP, err = l.Rail.OpenEndpoint(); err != nil {
		l.EP = nil
		l.Enter(BackingOff, time.Now())
	}
	return l, err
}

// add returns a link without an endpoint. The caller sets its session.
func (s *Set) add(num, rail, peerRail int) *Link {
	l := &Link{ID: s.Life.NextID()<<32 | uint64(rand.Uint32()), Num: num, Rail: s.Rails.List[rail], Peer: peerRail, meter: &meter{}, lines: limits.Lines{Burst: burstLines}}
	l.OwnRail = s.Rails.FirstShard(rail)
	return l
}

// Reach connects a fresh endpoint to the peer's endpoint, with Endpoint.Connect. sec is of the endpoint's link: see Channel.Security.
func (s *Set) Reach(ep provider.Endpoint, addr []byte, sec provider.Security) error {
	listener, ok := ep.(provider.Listener)
	if ok {
		listener.Secure(sec)
		s.shutLater(ep, listener) // before Connect: that fails if the endpoint is closed before it
	}
	err := failpoint.Fail("engine_connect")
	if err == nil {
		err = ep.Connect(addr)
	}
	if ok && err != nil {
		s.shutNever(ep)
		listener.Shut()
	}
	return err
}

// shutLater admits no connection from when the peer gives up: its link may back off first.
func (s *Set) shutLater(ep provider.Endpoint, l provider.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shuts == nil {
		s.shuts = map[provider.Endpoint]func(){}
	}
	s.shuts[ep] = s.Life.Later(max(s.ConnectTimeout, MostUnproved+2*ProbeTime), func() {
		s.shutNever(ep)
		l.Shut()
	})
}

// shutNever forgets the timer of shutLater.
func (s *Set) shutNever(ep provider.Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.shuts[ep]; cancel != nil {
		cancel()
		delete(s.shuts, ep)
	}
}

// close closes a link's endpoint. Nothing here keeps it, or its session's secrets, afterwards.
func (s *Set) close(l *Link) error {
	err := l.EP.Close()
	s.shutNever(l.EP)
	l.EP = nil
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
	s.mu.Lock()
	if s.links == nil {
		s.links = map[uint64]*Link{}
	}
	s.links[l.ID] = l
	s.mu.Unlock()
	c, err := sess.NewLink(l.Rail.Index, l.slot, l.EP.Core(), l.ID, l.PeerID, role, probe)
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
		if err = s.close(l); err != nil {
			s.Log.Warn("closing an endpoint failed", "peer", l.peerName(), "rail", l.Rail.Name(), "err", err)
		}
		if busy := (*provider.GPUBusy)(nil); errors.As(err, &busy) && l.initiator != nil {
			l.initiator.peer.AwaitGPU(busy) // before Reap ends the operations. At a target a deregistration reports it: the GPU copies between our own memory and a bounce buffer
		}
	}
	if l.Up {
		l.Core.Reap()
	}
	return err
}

// closeUnused closes the endpoint of a link that was never up. Nothing was posted on it, so that also one of a shared endpoint may be closed.
func (s *Set) closeUnused(l *Link) {
	if l.Up || l.EP == nil {
		return
	}
	if err := s.close(l); err != nil {
		s.Log.Warn("closing an endpoint failed", "peer", l.peerName(), "rail", l.Rail.Name(), "err", err)
	}
}

// stillPosted returns true if a link has operations posted. After Quiesce only links of shared endpoints can have any.
func stillPosted(links []*Link) bool {
	return slices.ContainsFunc(links, func(l *Link) bool { return !l.Drained() })
}

// posting returns true if a post may still use the links, although they have left its routes. A target posts no transfers.
func posting(links []*Link) bool {
	return len(links) > 0 && links[0].initiator != nil && links[0].initiator.peer.Posting()
}

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
		if closing.IsZero() && s.Life.Ending() {
			closing = time.Now()
		}
		if !closing.IsZero() && time.Since(closing) > atClose {
			if posting(links) {
				s.Log.Error("a post has not returned: the links of an ended session are leaked", "peer", links[0].peerName())
				return
			}
			for _, l := range slices.DeleteFunc(slices.Clone(links), (*Link).Drained) {
				s.Log.Error("operations of an ended session did not complete within 2 s; their memory may still be accessed",
					"peer", l.peerName(), "rail", l.Rail.Name())
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
			if err := s.close(l); err != nil {
				s.Log.Warn("closing a shared endpoint failed", "rail", l.Rail.Name(), "err", err)
			}
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
