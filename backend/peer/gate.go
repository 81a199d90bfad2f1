package peer

import (
	"container/list"
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// limits of what unauthenticated connections may cost.
type limits struct {
	halfOpen int           // handshakes of unproved connections at a time, each at most wire.HandshakeLimit of memory
	minAge   time.Duration // a handshake is not thrown out for another one before this
	burst    float64       // failed handshakes that a source has at once
	refill   float64       // and per second; above that its handshakes are thrown out before those of other sources
	sources  int           // sources remembered
}

var defaultLimits = limits{halfOpen: 256, minAge: 20 * time.Millisecond, burst: 64, refill: 8, sources: 4096}

// gate bounds how many connections there are that have not proved themselves. It refuses none: when it is full, one is thrown out at
// random. A proof takes one round trip, so that honest peers are through long before it is their turn, or with the next try; connections
// that are held are thrown out in the end. The source that has failed too often goes first, then the one with the most handshakes.
// Accepting waits until one of them is older than minAge.
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
		old, wait := g.victim(now)
		if old == nil {
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

// victim is any handshake of the source that has failed too often, or else of the one with the most, if it is old enough; nil: none is before
// wait is over. With mu held.
func (g *gate) victim(now time.Time) (old *guest, wait time.Duration) {
	var worst netip.Addr
	var most float64
	for source, n := range g.sources {
		bad := float64(n)
		if g.level(source, now) >= g.limits.burst {
			bad += float64(g.limits.halfOpen)
		}
		if bad > most {
			worst, most = source, bad
		}
	}
	var ripe []*guest
	for e := g.open.Front(); e != nil; e = e.Next() { // oldest first
		p := e.Value.(*guest)
		if p.source != worst {
			continue
		}
		if left := g.limits.minAge - now.Sub(p.since); left > 0 {
			wait = left
			break
		}
		ripe = append(ripe, p)
	}
	if len(ripe) == 0 {
		return nil, wait
	}
	return ripe[rand.IntN(len(ripe))], 0
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
