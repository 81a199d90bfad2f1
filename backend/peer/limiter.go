package peer

import (
	"container/list"
	"context"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits bound the cost of unauthenticated connections.
type Limits struct {
	HalfOpen int           // handshakes of unauthenticated connections at a time, each with at most wire.HandshakeLimit of memory
	MinAge   time.Duration // a handshake is not evicted before this age
	Burst    float64       // failed handshakes that a source may have at once,
	Refill   float64       // and per second; above that, its handshakes are evicted before those of other sources
	Sources  int           // number of sources remembered

	// Places returns how many handshakes there may be when a connection has come, of HalfOpen: fewer if the process lacks descriptors. nil: HalfOpen.
	Places func(c net.Conn, most int) int
}

// Default has the limits of a node.
var Default = Limits{HalfOpen: 256, MinAge: 20 * time.Millisecond, Burst: 64, Refill: 8, Sources: 4096}

// handshakeLimiter bounds the handshakes of unauthenticated connections. It refuses no connection: when it is full, it evicts
// a random handshake. A proof takes one round trip. So an honest peer usually finishes before it is evicted, or
// succeeds with its next try. Connections that stay open without a proof are evicted in the end. Evicted handshakes
// belong to sources with too many failures, or else to those with the most handshakes. Enter waits until one of
// them is older than Limits.MinAge. So it admits HalfOpen in MinAge, 12,800 a second by default, and at least half of
// that from any number of sources. handshakeLimiter is safe for concurrent use.
type handshakeLimiter struct {
	limits Limits
	freed  chan struct{} // one token: a place became free

	mu      sync.Mutex
	closed  bool
	open    *list.List // of *Pending, oldest first
	sources map[netip.Addr]*origin
	failed  map[netip.Addr]bucket
	held    []int // handshakes of the sources that are as bad as the index; toEvict's
}

// pendingHandshake is a connection in its handshake. It leaves the limiter by Leave or by eviction.
type pendingHandshake struct {
	Conn    net.Conn
	places  int // for handshakes, with this one
	Source  netip.Addr
	Context context.Context // ends when the connection leaves
	end     func()
	since   time.Time
	of      *origin
	element *list.Element // nil after it has left; guarded by handshakeLimiter.mu
}

// origin is a source with handshakes.
type origin struct{ open, bad int } // bad is toEvict's

// bucket counts failures; the count decreases with time.
type bucket struct {
	level float64
	at    time.Time
}

// newLimiter makes a limiter without connections.
func newLimiter(l Limits) *handshakeLimiter {
	return &handshakeLimiter{limits: l, freed: make(chan struct{}, 1), open: list.New(),
		sources: make(map[netip.Addr]*origin), failed: make(map[netip.Addr]bucket), held: make([]int, 2*l.HalfOpen+1)}
}

// Fail counts a failed handshake against its source.
func (l *handshakeLimiter) Fail(source netip.Addr, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.failed[source]; !known && len(l.failed) >= l.limits.Sources {
		l.forget(now)
	}
	//limit:failed_sources
	l.failed[source] = bucket{level: l.level(source, now) + 1, at: now}
}

// forget drops a source that has failed little: the best of a few, because a flood of many sources comes here with each connection. It needs mu.
func (l *handshakeLimiter) forget(now time.Time) {
	const looks = 8
	var best netip.Addr
	least, seen := math.Inf(1), 0
	for s := range l.failed { // begins anywhere
		if level := l.level(s, now); level < least {
			best, least = s, level
		}
		if seen++; seen == looks {
			break
		}
	}
	delete(l.failed, best)
}

// level needs mu.
func (l *handshakeLimiter) level(source netip.Addr, now time.Time) float64 {
	b, ok := l.failed[source]
	if !ok {
		return 0
	}
	return max(0, b.level-now.Sub(b.at).Seconds()*l.limits.Refill)
}

func (l *handshakeLimiter) newPending(ctx context.Context, c net.Conn, source netip.Addr) *pendingHandshake {
	p := &pendingHandshake{Conn: c, Source: source, places: l.limits.HalfOpen}
	if l.limits.Places != nil {
		p.places = l.limits.Places(c, p.places)
	}
	p.Context, p.end = context.WithCancel(ctx)
	return p
}

// Enter waits for a place and returns the new pending handshake. evicted is the handshake that was ended for it, if
// any. When ctx ends, Enter closes the connection and returns nil.
func (l *handshakeLimiter) Enter(ctx context.Context, c net.Conn, source netip.Addr) (p, evicted *pendingHandshake) {
	return l.enter(l.newPending(ctx, c, source), ctx)
}

// Pass is Enter for a connection that has its place in another limiter. If the connection leaves that one while Pass waits,
// Pass closes the connection and returns nil.
func (l *handshakeLimiter) Pass(ctx context.Context, from *pendingHandshake) (p, evicted *pendingHandshake) {
	return l.enter(l.newPending(ctx, from.Conn, from.Source), from.Context)
}

// enter is Enter, and waits no longer than while lasts.
func (l *handshakeLimiter) enter(p *pendingHandshake, while context.Context) (entered, evicted *pendingHandshake) {
	for {
		entered, wait, evicted := l.tryEnter(p, time.Now())
		if entered {
			return p, evicted // p may have left again by now
		}
		timer := time.NewTimer(wait)
		select {
		case <-l.freed:
		case <-timer.C:
		case <-while.Done():
			timer.Stop()
			p.end()
			p.Conn.Close()
			return nil, nil
		}
		timer.Stop()
	}
}

// tryEnter takes a place, or returns how long to wait for one.
func (l *handshakeLimiter) tryEnter(p *pendingHandshake, now time.Time) (entered bool, wait time.Duration, evicted *pendingHandshake) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false, time.Hour, nil // ctx has ended too
	}
	if l.open.Len() >= p.places {
		old, wait := l.evict(now, p.places)
		if old == nil {
			return false, wait, nil
		}
		evicted = old
		if l.open.Len() >= p.places { // they have become fewer
			_, _ = l.evict(now, p.places)
		}
	}
	p.since = now
	p.element = l.open.PushBack(p) //limit:half_open
	if p.of = l.sources[p.Source]; p.of == nil {
		p.of = &origin{}
		l.sources[p.Source] = p.of
	}
	p.of.open++
	if l.open.Len() < p.places {
		l.signal() // another listener may be waiting too
	}
	return true, 0, evicted
}

// evict ends a handshake, or returns how long to wait for one that may be ended. With fewer places they are younger: as many connections are
// admitted in a time. It needs mu.
func (l *handshakeLimiter) evict(now time.Time, places int) (old *pendingHandshake, wait time.Duration) {
	if old, wait = l.toEvict(now, l.limits.MinAge*time.Duration(places)/time.Duration(l.limits.HalfOpen)); old != nil {
		old.Conn.Close()
		l.remove(old)
	}
	return old, wait
}

// Shed ends a handshake of the worst source, because the process has no descriptor left.
func (l *handshakeLimiter) Shed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.evict(time.Now(), 0)
}

// toEvict returns a random handshake of the worst source that has one old enough. A source with too many failures is worse than
// others, and among these the one with more handshakes. The best sources that hold half of the handshakes are spared. Waiting for the
// worst alone, or for those that fail, let a flood of many sources keep the rate at 800 a second: their few handshakes are young. It
// returns nil if none is of minAge before wait has passed. It needs mu.
func (l *handshakeLimiter) toEvict(now time.Time, minAge time.Duration) (old *pendingHandshake, wait time.Duration) {
	clear(l.held)
	for source, o := range l.sources {
		o.bad = o.open
		if l.level(source, now) >= l.limits.Burst {
			o.bad += l.limits.HalfOpen
		}
		l.held[o.bad] += o.open
	}
	worst := len(l.held) - 1
	for sum := l.held[worst]; 2*sum < l.open.Len(); sum += l.held[worst] {
		worst--
	}
	var candidates []*pendingHandshake
	for e := l.open.Front(); e != nil; e = e.Next() { // oldest first
		p := e.Value.(*pendingHandshake)
		b := p.of.bad
		if b < worst {
			continue
		}
		if left := minAge - now.Sub(p.since); left > 0 {
			wait = left
			break
		}
		if b > worst {
			worst, candidates = b, candidates[:0]
		}
		candidates = append(candidates, p)
	}
	if len(candidates) == 0 {
		return nil, wait
	}
	return candidates[rand.IntN(len(candidates))], 0
}

// Leave takes a connection out of the limiter, because it is authenticated or has ended. It returns false if the
// connection was evicted before.
func (l *handshakeLimiter) Leave(p *pendingHandshake) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.element == nil {
		return false
	}
	l.remove(p)
	l.signal()
	return true
}

// remove needs mu.
func (l *handshakeLimiter) remove(p *pendingHandshake) {
	p.end()
	l.open.Remove(p.element)
	p.element = nil
	if p.of.open--; p.of.open == 0 {
		delete(l.sources, p.Source)
	}
}

func (l *handshakeLimiter) signal() {
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// HalfOpen returns the number of connections in their handshake.
func (l *handshakeLimiter) HalfOpen() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open.Len()
}

// Since reports that a connection in its handshake came after a time.
func (l *handshakeLimiter) Since(t time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.open.Back()
	return last != nil && last.Value.(*pendingHandshake).since.After(t)
}

// Close closes all connections in their handshake.
func (l *handshakeLimiter) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for e := l.open.Front(); e != nil; e = e.Next() {
		e.Value.(*pendingHandshake).Conn.Close()
	}
}

// SourceOf returns the key for counting failures: an IPv4 address, or the /64 of an IPv6 address.
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
