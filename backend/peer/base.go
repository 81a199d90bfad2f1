package peer

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/peer/liveness"
	"gorail/backend/peer/stream"
	"gorail/backend/wire"
)

// Self is this process; PID is 0 where /proc does not tell.
func Self() wire.Process { return liveness.Self() }

// base is what all sessions of a node share.
type base struct {
	cfg    Config
	env    *stream.Env
	dial   func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	count  counters
	number atomic.Uint64 // of the last Hello sent

	*group
	cancel context.CancelFunc // ends env.Ctx
}

// newBase makes the base of a node. shed is told that the sessions that we serve hold more.
func newBase(cfg Config, shed func()) *base {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	b := &base{cfg: cfg, dial: dialTCP, group: newGroup(), cancel: cancel}
	b.env = &stream.Env{Ctx: ctx, Log: cfg.Log, PeerTimeout: cfg.PeerTimeout, Heartbeat: cfg.heartbeat(), QueueLimit: cfg.QueueLimit,
		Spawn: b.spawn, Shed: shed, Acks: cfg.acks}
	return b
}

// watchProcess ends a session as soon as the peer's process ends, where that is visible.
func (b *base) watchProcess(s *stream.Stream, boot string, p wire.Process) {
	if liveness.Visible(&b.cfg.Identity, boot, p) {
		s.WatchProcess(p)
	}
}

// finish tells of a session's end: to the log, and by last to the handler.
func (b *base) finish(s *stream.Stream, last func(State, error)) {
	state, cause := s.Ended()
	if state == Closed {
		b.count.closed.Add(1)
	} else {
		b.count.lost.Add(1)
	}
	if state == Lost && s.Inbound() && !errors.Is(cause, ErrPeerClosed) { // the initiator's handler logs its own
		b.cfg.Log.Info("control session lost", "peer", s.Peer(), "error", cause)
	} else {
		b.cfg.Log.Debug("control session ended", "peer", s.Peer(), "cause", cause)
	}
	_ = b.env.Guard(s.Peer(), "the end of the session", func() error { last(state, cause); return nil })
}

// group is the goroutines of a node.
type group struct {
	idle chan struct{} // closed when close was called and running is 0

	mu      sync.Mutex
	closed  bool
	running int
}

func newGroup() *group { return &group{idle: make(chan struct{})} }

// spawn runs f in a goroutine that Close waits for; false, and f doesn't run, when the node is closed and nothing runs
// any more. A goroutine of the node may always spawn.
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

// close says that no goroutine is wanted any more; false when that was said before.
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

// wait waits for all goroutines; false when some run at that time.
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

// left is how many run.
func (g *group) left() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running
}
