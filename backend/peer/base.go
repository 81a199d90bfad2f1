package peer

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/wire"
)

// base is the state that all sessions of a node share.
type base struct {
	cfg    Config
	env    *streamEnv
	dial   func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	count  counters
	number atomic.Uint64 // of the last Hello sent

	renewals *renewals
	starts   *starts

	*group
	cancel context.CancelFunc // ends env.Ctx
}

// newBase makes the base of a node. shed is called when the inbound sessions hold more bytes.
func newBase(cfg Config, shed func()) *base {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	b := &base{cfg: cfg, dial: dialTCP, group: newGroup(), cancel: cancel, starts: newStarts()}
	b.env = &streamEnv{Ctx: ctx, Log: cfg.Log, PeerTimeout: cfg.PeerTimeout, Heartbeat: cfg.heartbeat(), QueueLimit: cfg.QueueLimit,
		Spawn: b.spawn, Shed: shed, Heard: cfg.Heard, Acks: cfg.acks}
	b.renewals = newRenewals(b)
	return b
}

// watchProcess ends a session as soon as the peer's process ends, if that process is visible.
func (b *base) watchProcess(s *stream, boot string, p wire.Process) {
	if processVisible(&b.cfg.Identity, boot, p) {
		s.WatchProcess(p)
	}
}

// finish reports a session's end to the log and, by calling last, to the handler.
func (b *base) finish(s *stream, last func(State, error)) {
	state, cause := s.Ended()
	if state == Closed {
		b.count.closed.Add(1)
	} else {
		b.count.lost.Add(1)
	}
	if state == Lost && s.Inbound() && !errors.Is(cause, ErrPeerClosed) { // the initiator's handler logs its own sessions
		b.cfg.Log.Info("control session lost", "peer", s.Peer(), "error", cause)
	} else {
		b.cfg.Log.Debug("control session ended", "peer", s.Peer(), "cause", cause)
	}
	_ = b.env.Guard(s.Peer(), "the end of the session", func() error { last(state, cause); return nil })
}

// group is the set of goroutines of a node. Its methods are safe for concurrent use.
type group struct {
	idle chan struct{} // closed after close was called and running is 0

	mu      sync.Mutex
	closed  bool
	running int
}

func newGroup() *group { return &group{idle: make(chan struct{})} }

// spawn runs f in a goroutine that Close waits for. If the node is closed and runs no goroutine any more, spawn
// returns false and f does not run. A goroutine of the node may always spawn.
func (g *group) spawn(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed && g.running == 0 {
		return false
	}
	g.running++
	go func() {
		defer g.exit()
		f()
	}()
	return true
}

func (g *group) exit() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if g.closed && g.running == 0 {
		close(g.idle)
	}
}

// close marks the group as closed. It returns false if it was closed before.
func (g *group) close() (first bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	first = !g.closed
	g.closed = true
	if first && g.running == 0 {
		close(g.idle)
	}
	return first
}

// wait waits for all goroutines. It returns false if some still run at the given time.
func (g *group) wait(until time.Time) bool {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-g.idle:
		return true
	case <-timer.C:
		return false
	}
}

// left returns the number of running goroutines.
func (g *group) left() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running
}
