package engine

import (
	"context"
	"time"

	"gorail/backend/provider"
	"gorail/backend/region"
)

// recheckEvery is the time between two looks at memory that peers have mapped: unmapped memory is given back within two seconds, and
// a look at 1,000 regions takes 0.2 ms.
const recheckEvery = 250 * time.Millisecond

// Peers can make us look at any time, and need not be honest. They do so restLeast after a look at the earliest, and after restTimes the time
// that the look took: looks take a tenth of a processor at most.
const (
	restLeast = 10 * time.Millisecond //limit:shm_looks
	restTimes = 10
)

// recheck looks whether registered memory is still what was registered: regularly, and when a peer has found that it is not.
func (e *Engine) recheck(ctx context.Context) {
	keepLooking(ctx, e.regions.Renewals(), func() (soon bool) {
		for _, r := range e.rails.List {
			if c, ok := r.Inner().(provider.Rechecker); ok {
				c.Recheck()
			}
		}
		soon = e.regions.Recheck()
		e.rails.LogReports()
		return soon
	})
}

// keepLooking looks every recheckEvery, region.Settled after a look that has found a change, and when asked. Who asks waits for the rest
// after the last look; the regular looks do not.
func keepLooking(ctx context.Context, asked <-chan struct{}, look func() (soon bool)) {
	tick := time.NewTicker(recheckEvery)
	defer tick.Stop()
	rest := time.NewTimer(0)
	defer rest.Stop()
	hear := (<-chan struct{})(nil) // asked, after the rest
	for {
		select {
		case <-ctx.Done():
			return
		case <-rest.C:
			hear = asked
			continue
		case <-tick.C:
		case <-hear:
		}
		began, next := time.Now(), recheckEvery
		if look() {
			next = region.Settled
		}
		hear = nil
		rest.Reset(max(restLeast, restTimes*time.Since(began)))
		tick.Reset(next)
	}
}

// forward asks for a look when a peer has found a change over a rail.
func (e *Engine) forward(ctx context.Context, c provider.Rechecker) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.Changed():
			e.regions.Outdated()
		}
	}
}
