package peer

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"gorail/backend/failpoint"
	"gorail/backend/nofork"
	"gorail/backend/quota"
	"gorail/backend/wire"
)

// How long Node.Close waits before it closes connections by force, and how long before it leaks a handler that does
// not return.
const (
	closeForce  = 60 * time.Millisecond
	closeGiveUp = 85 * time.Millisecond
)

// Node is an engine's control channel: its listeners and its sessions. It is safe for concurrent use.
type Node struct {
	*base
	*acceptor
	listeners []net.Listener // constant after NewNode
}

// NewNode listens on all addresses of cfg.Listen and cfg.Later, and serves initiators. An engine that only dials
// needs no address. An error wraps ErrListen and names the failed address. The caller must Close the node.
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
		l, err := net.Listener(nil), failpoint.Fail("peer_listen")
		if err == nil {
			l, err = lc.Listen(n.env.Ctx, "tcp", a)
		}
		if err != nil {
			n.Close()
			return nil, fmt.Errorf("%w on %s: give an address of this host that is up, and port 0 or a free one: %w", ErrListen, a, err)
		}
		release := func() {}
		if sc, ok := l.(syscall.Conn); ok {
			release = nofork.Hold(cfg.Descriptors, sc)
		}
		n.listeners = append(n.listeners, &heldListener{l, release})
	}
	for _, l := range n.listeners {
		n.spawn(func() { n.accept(l) })
	}
	if cfg.Operator.Wants() {
		n.spawn(n.renewals.run)
	}
	return n, nil
}

func newNode(cfg Config, target TargetHandler) *Node {
	r := newRegistry()
	b := newBase(cfg, r.shed)
	r.base = b
	a := newAcceptor(b, r, target)
	b.env.Opening = func() bool { return a.limiter.HalfOpen() > 0 || a.shown.HalfOpen() > 0 }
	return &Node{base: b, acceptor: a}
}

// Dial begins a session with the engine of a connection blob. It returns at once; the handler learns the outcome.
// after is the previous session with that engine, whose notifications may be missing; 0: none. On a closed node the
// session is Closed from the start, and the handler is not called.
func (n *Node) Dial(to wire.ConnBlob, after uint64, h InitiatorHandler) *Out {
	o := newOut(n.base, to, after, h)
	n.count.dialed.Add(1)
	if !n.sessions.add(o.stream) {
		o.Close("the engine was destroyed")
		return o
	}
	if !n.spawn(func() {
		defer n.sessions.remove(o.stream)
		o.run()
	}) {
		o.Close("the engine was destroyed")
		n.sessions.remove(o.stream)
	}
	return o
}

// Addrs returns the control addresses for the connection blob, in the order of Config.Listen and Config.Later.
func (n *Node) Addrs() []string {
	addrs := make([]string, len(n.listeners))
	for i, l := range n.listeners {
		addrs[i] = l.Addr().String()
	}
	return addrs
}

// MakeRoom ends a session after a refusal: of those that the refusal asks, the one with the longest silent peer, if that
// peer has missed its heartbeats, or if it holds what was lent. MakeRoom does nothing if it was called within the last 10
// ms, except to take back what was lent.
func (n *Node) MakeRoom(f quota.Refusal) { n.sessions.makeRoom(f) }

// Leaving announces that Close will follow. The Byes of sessions that end from now on also report the end of the
// engine.
func (n *Node) Leaving() { n.env.Gone.Store(true) }

// Close sends a Bye to all peers, and ends all sessions, listeners and goroutines. Every In gets its Gone, and no Out
// gets its Lost. Close returns within 100 ms. A goroutine whose handler has not returned by then ends when the
// handler returns. Its connection is already closed. Further calls wait for the first.
func (n *Node) Close() {
	n.Leaving()
	first := n.group.close()
	sessions := n.sessions.close()

	start := time.Now()
	n.cancel()
	for _, l := range n.listeners {
		l.Close()
	}
	n.limiter.Close()
	n.shown.Close()
	for _, s := range sessions {
		s.End(Closed, fmt.Errorf("%w: the engine was destroyed", ErrClosed), s.Bye("the engine was destroyed"))
	}
	if n.wait(start.Add(closeForce)) {
		return
	}
	for _, s := range sessions {
		s.Abort()
	}
	if n.wait(start.Add(closeGiveUp)) || !first {
		return
	}
	stuck := n.left()
	n.count.stuck.Add(uint64(stuck))
	n.cfg.Log.Warn("control channel closed with handlers still running", "goroutines", stuck)
}

// Stats returns the counters. It never waits for the network.
func (n *Node) Stats() Stats {
	s := n.count.read(&n.env.Count)
	s.HalfOpen = uint64(n.limiter.HalfOpen())
	s.In, s.Out = n.sessions.sizes()
	return s
}
