package peer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"gorail/backend/failpoint"
	"gorail/backend/host"
	"gorail/backend/limits"
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

	mu        sync.Mutex
	listeners []net.Listener
	moved     bool // since NewNode
}

// NewNode listens on all addresses of cfg.Listen and cfg.Later, and serves initiators. An engine that only dials
// needs no address. An error wraps ErrListen and names the failed address. The caller must Close the node.
func NewNode(cfg Config, target TargetHandler) (*Node, error) {
	n := newNode(cfg, target)
	for i, a := range append(slices.Clone(cfg.Listen), cfg.Later...) {
		l, err := n.listen(a, i >= len(cfg.Listen))
		if err != nil {
			n.Close()
			return nil, err
		}
		n.listeners = append(n.listeners, l)
	}
	for _, l := range n.listeners {
		n.spawn(func() { n.accept(l) })
	}
	if cfg.Operator.Wants() {
		n.spawn(n.renewals.run)
	}
	return n, nil
}

// listen listens on one address. later: the host may not have it yet.
func (n *Node) listen(at string, later bool) (net.Listener, error) {
	lc := net.ListenConfig{KeepAlive: -1}
	lc.SetMultipathTCP(false)
	if later {
		lc.Control = freeBind
	}
	if ap, err := netip.ParseAddrPort(at); err != nil || ap.Addr().IsUnspecified() {
		return nil, fmt.Errorf("%w on %q: give an address of this host as ip:port", ErrListen, at)
	}
	l, err := net.Listener(nil), failpoint.Fail("peer_listen")
	if err == nil {
		l, err = lc.Listen(n.env.Ctx, "tcp", at)
	}
	if err != nil {
		return nil, fmt.Errorf("%w on %s: give an address of this host that is up, and port 0 or a free one: %w", ErrListen, at, err)
	}
	t := l.(*net.TCPListener)
	return &heldListener{t, host.CloseSocketInForks(n.cfg.CloseInForks, t)}, nil
}

// Move replaces the listener on an address that the host has lost by one on another address, with the same port if that is free. Tell follows.
func (n *Node) Move(from, to netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.listeners, func(l net.Listener) bool { return listensOn(l).Addr() == from })
	if i < 0 {
		return fmt.Errorf("%w: no listener on %s", ErrListen, from)
	}
	if n.env.Ctx.Err() != nil {
		return ErrClosed
	}
	l, err := n.listen(netip.AddrPortFrom(to, listensOn(n.listeners[i]).Port()).String(), false)
	if errors.Is(err, syscall.EADDRINUSE) {
		l, err = n.listen(netip.AddrPortFrom(to, 0).String(), false)
	}
	if err != nil {
		return err
	}
	if !n.spawn(func() { n.accept(l) }) {
		l.Close()
		return ErrClosed
	}
	old := n.listeners[i]
	n.listeners = slices.Clone(n.listeners)
	n.listeners[i], n.moved = l, true
	return old.Close()
}

// listensOn is a listener's address.
func listensOn(l net.Listener) netip.AddrPort {
	a, _ := netip.ParseAddrPort(l.Addr().String())
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Tell tells the peers of all sessions, and of those that begin later, our control addresses of now.
func (n *Node) Tell() {
	for _, s := range n.sessions.list() {
		n.tell(s)
	}
}

// tell tells one peer if the addresses have changed since NewNode.
func (n *Node) tell(s *stream) {
	n.mu.Lock()
	moved := n.moved
	n.mu.Unlock()
	if moved {
		s.Send(&wire.Moved{Control: n.Addrs()})
	}
}

func newNode(cfg Config, target TargetHandler) *Node {
	r := newSessionTable()
	b := newBase(cfg, r.shed)
	r.base = b
	a := newAcceptor(b, r, target)
	b.env.Opening = a.opening
	n := &Node{base: b, acceptor: a}
	a.begun = n.tell
	return n
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
	n.tell(o.stream)
	if !n.spawn(func() {
		defer n.sessions.remove(o.stream)
		o.run()
	}) {
		o.Close("the engine was destroyed")
		n.sessions.remove(o.stream)
	}
	return o
}

// Addrs returns the control addresses of now, in the order of Config.Listen and Config.Later.
func (n *Node) Addrs() []string {
	n.mu.Lock()
	listeners := n.listeners
	n.mu.Unlock()
	addrs := make([]string, len(listeners))
	for i, l := range listeners {
		addrs[i] = l.Addr().String()
	}
	return addrs
}

// MakeRoom ends a session after a refusal: of those that the refusal asks, the one with the longest silent peer, if that
// peer has missed its heartbeats, or if it holds what was lent. MakeRoom does nothing if it was called within the last 10
// ms, except to take back what was lent.
func (n *Node) MakeRoom(f limits.Refusal) { n.sessions.makeRoom(f) }

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
	n.mu.Lock()
	for _, l := range n.listeners {
		l.Close()
	}
	n.mu.Unlock()
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
	if stuck == 0 {
		return // the last one has ended meanwhile
	}
	n.count.stuck.Add(uint64(stuck))
	n.cfg.Log.Debug("handlers of the control channel have not returned at its end; the end of the engine waits for them", "goroutines", stuck)
}

// Stats returns the counters. It never waits for the network.
func (n *Node) Stats() Stats {
	s := n.count.read(&n.env.Count)
	s.HalfOpen = uint64(n.limiter.HalfOpen())
	s.In, s.Out = n.sessions.sizes()
	return s
}
