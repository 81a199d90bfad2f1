package peer

import (
	"context"
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// tlsPerSecond keeps TLS handshakes below a quarter of a core. The target's side of one takes 0.3 to 0.4 ms
// (go test ./backend/peer -run NONE -bench Handshake).
const tlsPerSecond = 625

// handshakeTurns bounds the work for TLS handshakes of connections that have shown the token. It is safe for concurrent use.
type handshakeTurns struct {
	all    chan struct{}
	source int // turns of one source at a time
	pace   *rate.Limiter

	full, fullSource func() // called by one that has to wait

	mu      sync.Mutex
	sources map[netip.Addr]*places
}

// places are the turns of one source. It is dropped with its last user.
type places struct {
	taken chan struct{}
	users int
}

// newTurns makes handshakeTurns for this number of handshakes at a time. One source gets a quarter of them. full and fullSource
// are called when one has to wait for others.
func newTurns(all int, full, fullSource func()) *handshakeTurns {
	return &handshakeTurns{all: make(chan struct{}, all), //limit:handshakes
		source: max(1, all/4), pace: rate.NewLimiter(tlsPerSecond, all), full: full, fullSource: fullSource, sources: make(map[netip.Addr]*places)}
}

// Take waits for a turn. The caller ends it with end. ok is false if ctx ended first.
func (t *handshakeTurns) Take(ctx context.Context, source netip.Addr) (end func(), ok bool) {
	p := t.enter(source)
	if !occupy(ctx, p.taken, t.fullSource) {
		t.leave(source, p)
		return nil, false
	}
	if !occupy(ctx, t.all, t.full) {
		<-p.taken
		t.leave(source, p)
		return nil, false
	}
	end = func() {
		<-t.all
		<-p.taken
		t.leave(source, p)
	}
	if t.pace.Tokens() < 1 {
		t.full()
	}
	if t.pace.Wait(ctx) != nil {
		end()
		return nil, false
	}
	return end, true
}

// Busy reports that a handshake has a turn, or waits for one.
func (t *handshakeTurns) Busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sources) > 0
}

// occupy waits for a place. It returns false if ctx ended first.
func occupy(ctx context.Context, places chan struct{}, full func()) bool {
	select {
	case places <- struct{}{}:
		return true
	default:
		full()
	}
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (t *handshakeTurns) enter(source netip.Addr) *places {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.sources[source]
	if p == nil {
		p = &places{taken: make(chan struct{}, t.source)} //limit:handshakes_per_source
		t.sources[source] = p
	}
	p.users++
	return p
}

func (t *handshakeTurns) leave(source netip.Addr, p *places) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.users--; p.users == 0 {
		delete(t.sources, source)
	}
}
