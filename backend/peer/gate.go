package peer

import (
	"container/list"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"
)

// limits of what strangers may cost.
type limits struct {
	halfOpen int           // handshakes of unproved connections at a time, each at most wire.HandshakeLimit of memory
	minAge   time.Duration // a handshake is not cut short for another one before this
	burst    float64       // failed handshakes that a source has at once
	refill   float64       // and per second
	sources  int           // sources remembered
}

var defaultLimits = limits{halfOpen: 256, minAge: time.Second, burst: 64, refill: 8, sources: 4096}

// gate bounds what connections cost that have not proved themselves: how many there are at a time, and how many failures
// a source may have. When it is full, the oldest handshake of the source with the most of them makes room, once it is
// older than minAge; until then accepting waits, which a burst of honest peers outlives.
type gate struct {
	limits limits
	freed  chan struct{} // one token: a place became free

	mu      sync.Mutex
	closed  bool
	open    *list.List // of *guest, oldest first
	sources map[netip.Addr]int
	failed  map[netip.Addr]bucket
}

// guest is a connection in its handshake. It is out of the gate once leave was called or room was made of it.
type guest struct {
	conn   net.Conn
	source netip.Addr
	since  time.Time
	place  *list.Element // nil once out; by gate.mu
}

// bucket holds failures that drain with time.
type bucket struct {
	level float64
	at    time.Time
}

func newGate(l limits) *gate {
	return &gate{limits: l, freed: make(chan struct{}, 1), open: list.New(),
		sources: make(map[netip.Addr]int), failed: make(map[netip.Addr]bucket)}
}

// allowed says that a source has failures left.
func (g *gate) allowed(source netip.Addr, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.level(source, now) < g.limits.burst
}

// fail counts a failed handshake against its source.
func (g *gate) fail(source netip.Addr, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known := g.failed[source]; !known && len(g.failed) >= g.limits.sources {
		for s := range g.failed {
			if g.level(s, now) == 0 {
				delete(g.failed, s)
			}
		}
		for s := range g.failed { // still full: any one goes
			if len(g.failed) < g.limits.sources {
				break
			}
			delete(g.failed, s)
		}
	}
	g.failed[source] = bucket{level: g.level(source, now) + 1, at: now}
}

// level is called with mu held.
func (g *gate) level(source netip.Addr, now time.Time) float64 {
	b, ok := g.failed[source]
	if !ok {
		return 0
	}
	return max(0, b.level-now.Sub(b.at).Seconds()*g.limits.refill)
}

// enter waits for a place; evicted is the handshake that was cut short for it. nil when the node closes; the
// connection is closed then.
func (g *gate) enter(ctx context.Context, c net.Conn, source netip.Addr) (p, evicted *guest) {
	p = &guest{conn: c, source: source}
	for {
		wait, evicted := g.tryEnter(p, time.Now())
		if p.place != nil {
			return p, evicted
		}
		timer := time.NewTimer(wait)
		select {
		case <-g.freed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			c.Close()
			return nil, nil
		}
		timer.Stop()
	}
}

func (g *gate) tryEnter(p *guest, now time.Time) (wait time.Duration, evicted *guest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return time.Hour, nil // the context has ended too
	}
	if g.open.Len() >= g.limits.halfOpen {
		old := g.victim()
		if wait := g.limits.minAge - now.Sub(old.since); wait > 0 {
			return wait, nil
		}
		old.conn.Close()
		g.out(old)
		evicted = old
	}
	p.since = now
	p.place = g.open.PushBack(p)
	g.sources[p.source]++
	if g.open.Len() < g.limits.halfOpen {
		g.signal() // another listener may be waiting too
	}
	return 0, evicted
}

// victim is the oldest handshake of the source that has the most.
func (g *gate) victim() *guest {
	var best *guest
	for e := g.open.Front(); e != nil; e = e.Next() {
		if p := e.Value.(*guest); best == nil || g.sources[p.source] > g.sources[best.source] {
			best = p
		}
	}
	return best
}

// leave takes a connection out of the gate: it has proved itself or ended. false: it had to make room before.
func (g *gate) leave(p *guest) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.place == nil {
		return false
	}
	g.out(p)
	g.signal()
	return true
}

// out is called with mu held.
func (g *gate) out(p *guest) {
	g.open.Remove(p.place)
	p.place = nil
	if g.sources[p.source]--; g.sources[p.source] == 0 {
		delete(g.sources, p.source)
	}
}

func (g *gate) signal() {
	select {
	case g.freed <- struct{}{}:
	default:
	}
}

func (g *gate) halfOpen() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open.Len()
}

// close closes all connections that are in their handshake.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for e := g.open.Front(); e != nil; e = e.Next() {
		e.Value.(*guest).conn.Close()
	}
}

// sourceOf is what failures are counted by: an IPv4 address, or the /64 of an IPv6 address.
func sourceOf(a net.Addr) netip.Addr {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() && !ip.IsLoopback() {
		if p, err := ip.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return ip
}
