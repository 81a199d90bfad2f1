package handshake

import (
	"context"
	"net/netip"
	"sync"
)

// turnsOf is how many openings a process has at one target from one address at a time: sixteen processes of a host do not take each other's places
// at the target.
const turnsOf = 4

// turns are the openings of a process, by route: a path on which nothing is answered holds up no other path to the target.
type turns struct {
	mu sync.Mutex
	of map[route]*turn
}

type route struct {
	from netip.Addr
	to   netip.AddrPort
}

type turn struct {
	places chan struct{}
	users  int // that hold a place, or wait for one
}

// take waits for a place on the route. The caller calls leave once. It fails if ctx ends first.
func (t *turns) take(ctx context.Context, on route) (leave func(), err error) {
	t.mu.Lock()
	if t.of == nil {
		t.of = map[route]*turn{}
	}
	at := t.of[on]
	if at == nil {
		at = &turn{places: make(chan struct{}, turnsOf)}
		t.of[on] = at
	}
	at.users++
	t.mu.Unlock()
	select {
	case at.places <- struct{}{}:
		return func() { <-at.places; t.done(on, at) }, nil
	case <-ctx.Done():
		t.done(on, at)
		return nil, ctx.Err()
	}
}

func (t *turns) done(on route, at *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if at.users--; at.users == 0 {
		delete(t.of, on)
	}
}
