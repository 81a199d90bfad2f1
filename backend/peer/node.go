package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gorail/backend/wire"
)

// Defaults of Config.
const (
	DefaultPeerTimeout    = time.Minute
	DefaultConnectTimeout = 30 * time.Second
	DefaultMaxSessions    = 4096
	DefaultQueueLimit     = 64 << 20
	DefaultMemory         = 256 << 20
)

// mostHeartbeat is the longest time that heartbeats are derived from: a quarter of it between pings, a third of silence before
// another path is tried. A larger PeerTimeout only lets the session wait longer.
const mostHeartbeat = 5 * time.Second

// mostReach bounds what is left to addresses that do not even accept a connection, and to handshakes of strangers.
const mostReach = 5 * time.Second

// How long Node.Close waits before it closes connections by force, and before it leaves a stuck handler behind.
const (
	closeForce = 60 * time.Millisecond
	closeGive  = 85 * time.Millisecond
)

// Config of a Node. The zero value of a duration or limit is its default.
type Config struct {
	Identity       wire.ConnBlob // of this engine, with its token; Control is not used
	PeerTimeout    time.Duration // a session whose peer shows no sign of life for so long, on any path, is lost
	ConnectTimeout time.Duration // for all of a dial, handshake included
	MaxSessions    int           // that we serve; for one more the one whose peer is silent for longest gives way
	MaxPerSource   int           // of these, behind one address; default three quarters
	Memory         int           // bytes of frames that all sessions that we serve may hold; beyond it the one with the most ends
	QueueLimit     int           // bytes that may wait to be sent or acknowledged on one session; at least 4 MiB for large answers
	Listen         []string      // "ip:port", port 0 for any; no wildcard, for peers are told these addresses
	Later          []string      // the same of interfaces that are down: connections come once they are up
	Descriptors    Descriptors   // nil: children of fork may hold our sockets
	Log            *slog.Logger  // nil: none

	acks func(c net.Conn, recent time.Duration) bool // acknowledges, but for tests
}

// Node is an engine's control channel: its listeners and its sessions. Safe for concurrent use.
type Node struct {
	cfg    Config
	target TargetHandler
	gate   *gate
	dial   func(ctx context.Context, to netip.AddrPort) (net.Conn, error)
	count  counters
	number atomic.Uint64   // of the last Hello sent
	frames atomic.Int64    // bytes of frames of the sessions that we serve
	gone   atomic.Bool     // goodbyes say that the engine ends
	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	listeners []net.Listener // constant after NewNode

	mu       sync.Mutex
	closed   bool
	sessions map[*session]struct{}
	sources  map[netip.Addr]int // sessions that we serve, by where they come from
	inbound  int                // all of these
	searched time.Time          // when a session that gives way was looked for last
	shedding bool               // a session that holds too much is being looked for
	served   map[sessionKey]*In // those that may be resumed
	running  int                // goroutines
	idle     chan struct{}      // closed when Close has begun and running is 0
}

// NewNode listens on all addresses of cfg.Listen and cfg.Later (none is allowed: an engine that only dials) and serves initiators.
// ErrListen names the address that failed. The caller must Close the node.
func NewNode(cfg Config, target TargetHandler) (*Node, error) {
	n := newNode(cfg, target)
	lc := net.ListenConfig{KeepAlive: -1}
	lc.SetMultipathTCP(false)
	for i, a := range append(slices.Clone(cfg.Listen), cfg.Later...) {
		if i == len(cfg.Listen) {
			lc.Control = freeBind
		}
		if ap, err := netip.ParseAddrPort(a); err != nil || ap.Addr().IsUnspecified() {
			n.Close()
			return nil, fmt.Errorf("%w on %q: give an address of this host as ip:port", ErrListen, a)
		}
		l, err := lc.Listen(n.ctx, "tcp", a)
		if err != nil {
			n.Close()
			return nil, fmt.Errorf("%w on %s: give an address of this host that is up, and port 0 or a free one: %w", ErrListen, a, err)
		}
		release := func() {}
		if sc, ok := l.(syscall.Conn); ok {
			release = n.hold(sc)
		}
		n.listeners = append(n.listeners, &heldListener{l, release})
	}
	for _, l := range n.listeners {
		n.spawn(func() { n.accept(l) })
	}
	return n, nil
}

func newNode(cfg Config, target TargetHandler) *Node {
	if cfg.PeerTimeout <= 0 {
		cfg.PeerTimeout = DefaultPeerTimeout
	}
	if cfg.ConnectTimeout <= 0 {
		cfg.ConnectTimeout = DefaultConnectTimeout
	}
	if cfg.MaxSessions <= 0 {
		cfg.MaxSessions = DefaultMaxSessions
	}
	if cfg.MaxPerSource <= 0 {
		cfg.MaxPerSource = (3*cfg.MaxSessions + 3) / 4
	}
	if cfg.Memory <= 0 {
		cfg.Memory = DefaultMemory
	}
	if cfg.QueueLimit <= 0 {
		cfg.QueueLimit = DefaultQueueLimit
	}
	if cfg.acks == nil {
		cfg.acks = acknowledges
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	n := &Node{cfg: cfg, target: target, gate: newGate(defaultLimits), dial: dialTCP,
		sessions: make(map[*session]struct{}), sources: make(map[netip.Addr]int), served: make(map[sessionKey]*In), idle: make(chan struct{})}
	n.ctx, n.cancel = context.WithCancel(context.Background())
	return n
}

// heartbeat is what pings and the search for other paths are timed by.
func (c *Config) heartbeat() time.Duration { return min(c.PeerTimeout, mostHeartbeat) }

// reach is how long an address may take to accept a connection, and an unproved connection to prove itself.
func (c *Config) reach() time.Duration { return min(c.ConnectTimeout, mostReach) }

// Addrs are the control addresses for the connection blob, in the order of Config.Listen and Config.Later.
func (n *Node) Addrs() []string {
	addrs := make([]string, len(n.listeners))
	for i, l := range n.listeners {
		addrs[i] = l.Addr().String()
	}
	return addrs
}

// Leaving says that Close will follow: sessions that end from now on, for whatever reason, end with the engine.
func (n *Node) Leaving() { n.gone.Store(true) }

// Close says goodbye to all peers, and ends all sessions, listeners and goroutines. Every In gets its Gone, no Out its Lost.
// It returns within 100 ms; a goroutine whose handler has not returned by then ends when the handler does, with its
// connection closed already. Further calls wait for the first.
func (n *Node) Close() {
	n.Leaving()
	n.mu.Lock()
	first := !n.closed
	n.closed = true
	if first && n.running == 0 {
		close(n.idle)
	}
	sessions := make([]*session, 0, len(n.sessions))
	for s := range n.sessions {
		sessions = append(sessions, s)
	}
	n.mu.Unlock()

	start := time.Now()
	n.cancel()
	for _, l := range n.listeners {
		l.Close()
	}
	n.gate.close()
	for _, s := range sessions {
		s.end(Closed, fmt.Errorf("%w: the engine was destroyed", ErrClosed), s.bye("the engine was destroyed"))
	}
	if n.waitIdle(start.Add(closeForce)) {
		return
	}
	for _, s := range sessions {
		s.abort()
	}
	if n.waitIdle(start.Add(closeGive)) || !first {
		return
	}
	n.mu.Lock()
	stuck := n.running
	n.mu.Unlock()
	n.count.stuck.Add(uint64(stuck))
	n.cfg.Log.Warn("control channel closed with handlers still running", "goroutines", stuck)
}

func (n *Node) waitIdle(until time.Time) bool {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-n.idle:
		return true
	case <-timer.C:
		return false
	}
}

// spawn runs f in a goroutine that Close waits for; false, and f doesn't run, when the node is closed and nothing runs
// any more. A goroutine of the node may always spawn.
func (n *Node) spawn(f func()) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed && n.running == 0 {
		return false
	}
	n.running++
	go func() {
		defer n.exit()
		f()
	}()
	return true
}

func (n *Node) exit() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.running--
	if n.closed && n.running == 0 {
		close(n.idle)
	}
}

// add makes a session known to Close; false when Close has begun.
func (n *Node) add(s *session) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return false
	}
	n.sessions[s] = struct{}{}
	return true
}

func (n *Node) remove(s *session) {
	s.cancel()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.sessions, s)
	n.release(s)
}

// guard calls a handler and makes an error of a panic: a host process must not die of it.
func (n *Node) guard(peer, what string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			n.cfg.Log.Error("panic in a control handler", "peer", peer, "in", what, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %s: panic in %s: %v", ErrHandler, peer, what, p)
		}
	}()
	return f()
}

// finish tells of a session's end: to the log, and by last to the handler.
func (n *Node) finish(s *session, last func(State, error)) {
	state, cause := s.ended()
	if state == Closed {
		n.count.closed.Add(1)
	} else {
		n.count.lost.Add(1)
	}
	if state == Lost && s.inbound && !errors.Is(cause, ErrPeerClosed) { // the initiator's handler logs its own
		n.cfg.Log.Info("control session lost", "peer", s.peer, "error", cause)
	} else {
		n.cfg.Log.Debug("control session ended", "peer", s.peer, "cause", cause)
	}
	_ = n.guard(s.peer, "the end of the session", func() error { last(state, cause); return nil })
}
