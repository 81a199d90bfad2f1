// Package limiter bounds how many connections there are that have not proved themselves. It knows no protocol: its edge is net.Conn, of which
// it takes the address and calls Close.
package limiter

import (
	"container/list"
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits of what unauthenticated connections may cost.
type Limits struct {
	HalfOpen int           // handshakes of unproved connections at a time, each at most wire.HandshakeLimit of memory
	MinAge   time.Duration // a handshake is not evicted for another one before this
	Burst    float64       // failed handshakes that a source has at once
	Refill   float64       // and per second; above that its handshakes are evicted before those of other sources
	Sources  int           // sources remembered
}

// Default are the limits of a node.
var Default = Limits{HalfOpen: 256, MinAge: 20 * time.Millisecond, Burst: 64, Refill: 8, Sources: 4096}

// Limiter bounds the handshakes of connections that have not proved themselves. It refuses none: when it is full, one is evicted at
// random. A proof takes one round trip, so that honest peers are through long before it is their turn, or with the next try; connections
// that are held are evicted in the end. The source that has failed too often goes first, then the one with the most handshakes.
// Accepting waits until one of them is older than Limits.MinAge. Safe for concurrent use.
type Limiter struct {
	limits Limits
	freed  chan struct{} // one token: a place became free

	mu      sync.Mutex
	closed  bool
	open    *list.List // of *Pending, oldest first
	sources map[netip.Addr]int
	failed  map[netip.Addr]bucket
}

// Pending is a connection in its handshake. It is out once Leave was called or room was made of it.
type Pending struct {
	Conn   net.Conn
	Source netip.Addr
	since  time.Time
	place  *list.Element // nil once out; by Limiter.mu
}

// bucket holds failures that drain with time.
type bucket struct {
	level float64
	at    time.Time
}

// New makes a limiter without connections.
func New(l Limits) *Limiter {
	return &Limiter{limits: l, freed: make(chan struct{}, 1), open: list.New(),
		sources: make(map[netip.Addr]int), failed: make(map[netip.Addr]bucket)}
}

// Fail counts a failed handshake against its source.
func (l *Limiter) Fail(source netip.Addr, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.failed[source]; !known && len(l.failed) >= l.limits.Sources {
		for s := range l.failed {
			if l.level(s, now) == 0 {
				delete(l.failed, s)
			}
		}
		for s := range l.failed { // still full: any one goes
			if len(l.failed) < l.limits.Sources {
				break
			}
			delete(l.failed, s)
		}
	}
	l.failed[source] = bucket{level: l.level(source, now) + 1, at: now}
}

// level is called with mu held.
func (l *Limiter) level(source netip.Addr, now time.Time) float64 {
	b, ok := l.failed[source]
	if !ok {
		return 0
	}
	return max(0, b.level-now.Sub(b.at).Seconds()*l.limits.Refill)
}

// Enter waits for a place; evicted is the handshake that was cut short for it. nil when the node closes; the
// connection is closed then.
func (l *Limiter) Enter(ctx context.Context, c net.Conn, source netip.Addr) (p, evicted *Pending) {
	p = &Pending{Conn: c, Source: source}
	for {
		entered, wait, evicted := l.tryEnter(p, time.Now())
		if entered {
			return p, evicted // p may be out again by now
		}
		timer := time.NewTimer(wait)
		select {
		case <-l.freed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			c.Close()
			return nil, nil
		}
		timer.Stop()
	}
}

// tryEnter gives a place, or says how long to wait for one.
func (l *Limiter) tryEnter(p *Pending, now time.Time) (entered bool, wait time.Duration, evicted *Pending) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false, time.Hour, nil // the context has ended too
	}
	if l.open.Len() >= l.limits.HalfOpen {
		old, wait := l.toEvict(now)
		if old == nil {
			return false, wait, nil
		}
		old.Conn.Close()
		l.out(old)
		evicted = old
	}
	p.since = now
	p.place = l.open.PushBack(p)
	l.sources[p.Source]++
	if l.open.Len() < l.limits.HalfOpen {
		l.signal() // another listener may be waiting too
	}
	return true, 0, evicted
}

// toEvict is any handshake of the source that has failed too often, or else of the one with the most, if it is old enough; nil: none is before
// wait is over. With mu held.
func (l *Limiter) toEvict(now time.Time) (old *Pending, wait time.Duration) {
	var worst netip.Addr
	var most float64
	for source, n := range l.sources {
		bad := float64(n)
		if l.level(source, now) >= l.limits.Burst {
			bad += float64(l.limits.HalfOpen)
		}
		if bad > most {
			worst, most = source, bad
		}
	}
	var ripe []*Pending
	for e := l.open.Front(); e != nil; e = e.Next() { // oldest first
		p := e.Value.(*Pending)
		if p.Source != worst {
			continue
		}
		if left := l.limits.MinAge - now.Sub(p.since); left > 0 {
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

// Leave takes a connection out of the limiter: it has proved itself or ended. false: it had to make room before.
func (l *Limiter) Leave(p *Pending) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.place == nil {
		return false
	}
	l.out(p)
	l.signal()
	return true
}

// out is called with mu held.
func (l *Limiter) out(p *Pending) {
	l.open.Remove(p.place)
	p.place = nil
	if l.sources[p.Source]--; l.sources[p.Source] == 0 {
		delete(l.sources, p.Source)
	}
}

func (l *Limiter) signal() {
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// HalfOpen is how many connections are in their handshake.
func (l *Limiter) HalfOpen() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open.Len()
}

// Close closes all connections that are in their handshake.
func (l *Limiter) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for e := l.open.Front(); e != nil; e = e.Next() {
		e.Value.(*Pending).Conn.Close()
	}
}

// SourceOf is what failures are counted by: an IPv4 address, or the /64 of an IPv6 address.
func SourceOf(a net.Addr) netip.Addr {
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
