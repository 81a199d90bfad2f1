package session

// A link is an endpoint on one rail, and the core's posts over it. A session
// owns its links and guards them with its own lock. This file opens, starts, quiesces and frees links, and passes the
// core's events to them.

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/core"
	"gorail/backend/host"
	"gorail/backend/lifetime"
	"gorail/backend/limits"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/stats"
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

	CameUpLate bool // the link came up during the session: keys of earlier regions may lack the peer's rail
	StartAgain bool // the peer's rail came up while the link was being started

	FenceID uint64      // of the FENCE without an answer; 0: there is none
	Answer  *core.Proof // of the last FENCE's answer: nothing older lands any more. nil since Rebind, or no FENCE was answered

	Connects lifetime.Serial // connects endpoints to the peer's, which may take seconds. Safe without the lock

	oneHost  bool   // see OneHost
	endsText string // both ends of the link, for messages; "": the fabric does not report them
	Fault    error  // the endpoint's last error, while not proved

	owner Owner
	meter *meter
	lines limits.Lines
}

// Owner is the session that owns a link.
type Owner interface {
	// LinkEvent reports that the first message has come in over a new link (errno 0), or that the link has stopped with
	// an error. It must not wait, and takes no lock.
	LinkEvent(l *Link, epoch uint64, errno int32)
	PeerName() string // the peer's agent, for the log
	// Posting reports that a post may still use the session's links, although they have left its routes.
	Posting() bool
	// GPUBusy reports that an endpoint is closed while a GPU may still copy for it. With the session's lock held.
	GPUBusy(busy *provider.GPUBusy)
}

// Shared returns true if the endpoint serves other peers as well. A fence does not close such an endpoint.
func (l *Link) Shared() bool { return l.Rail.Can.SharedEndpoint }

// Level is the level of the link's log lines: debug after the log has said that nothing comes over the link.
func (l *Link) Level() slog.Level {
	if l.UnprovedLogged {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

// Drained returns true if the link has nothing posted.
func (l *Link) Drained() bool { return !l.Up || l.Core.Stats().InflightOps == 0 }

// Count reads the counters of a link that is up, for package failover.
func (l *Link) Count() Count {
	s := l.Core.Stats()
	return Count{Completions: s.Completions, Errors: s.Errors, InFlight: uint64(s.InflightOps)}
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

// meter keeps a link's counters after the link is freed. The core counts without locks; mu only keeps the link alive
// while read reads its counters.
type meter struct {
	fences, stalls atomic.Uint64

	mu   sync.Mutex
	l    core.Link
	last core.Tally // set when l is freed
}

// begin is called when the link exists.
func (m *meter) begin(l core.Link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.l = l
}

// end is called before the link is freed, with nothing of it posted any more.
func (m *meter) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = m.l.Tally()
	m.last.InFlight = 0
	m.l = core.Link{}
}

func (m *meter) read() core.Tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.last
	if m.l.Exists() {
		t = m.l.Tally()
	}
	t.Fences, t.Stalls = m.fences.Load(), m.stalls.Load()
	return t
}

// queues takes the rail's lock. The link is not freed meanwhile.
func (m *meter) queues() stats.Queues {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.l.Exists() {
		return stats.Queues{}
	}
	s := m.l.Stats()
	return stats.Queues{Window: s.Window, Ops: s.InflightOps, Credits: s.Credits, Messages: s.QueuedMsgs, Transfers: s.QueuedSubs}
}

// PhaseName is the phase in the words of the counters.
func (l *Link) PhaseName() string {
	if !l.Up && l.Phase == Working {
		return "connecting"
	}
	return [...]string{Working: stats.Working, Fencing: "fencing", Draining: "draining", BackingOff: "backing off",
		Probing: "probing"}[l.Phase]
}

// Secrets derives what both ends of a session have, and nobody else.
type Secrets interface {
	LinkSecret(n trust.LinkName) *trust.LinkSecret
	KeySalt() [16]byte
}

// Channel is what the links of a session need of its control channel.
type Channel struct {
	Role    core.Role // ours
	Secrets           // of the session
}

// Security returns what only the two ends of a link know in its present epoch. Both ends must have given the link the same
// epoch and each other's ID. Under the lock of the link's session.
func (c Channel) Security(l *Link) provider.Security {
	n := trust.LinkName{Fabric: l.Rail.Device().Fabric, InitiatorRail: uint8(l.Rail.Index), TargetRail: uint8(l.Peer), InitiatorID: l.ID, TargetID: l.PeerID,
		Epoch: l.Epoch}
	if c.Role == core.Target {
		n.InitiatorRail, n.TargetRail, n.InitiatorID, n.TargetID = n.TargetRail, n.InitiatorRail, n.TargetID, n.InitiatorID
	}
	return provider.Security{Initiator: c.Role == core.Initiator, Keys: c.KeySalt(), Link: func(t trust.Ticket) *trust.LinkSecret {
		named := n
		named.Ticket = t
		return c.LinkSecret(named)
	}}
}
