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

// recheck looks whether registered memory is still what was registered: regularly, and when a peer has found that it is not.
func (e *Engine) recheck(ctx context.Context) {
	tick := time.NewTicker(recheckEvery)
	defer tick.Stop()
	var looked time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-e.regions.Renewals():
			if wait := region.Settled - time.Since(looked); wait > 0 { // peers ask, and each copy of memory that is asleep
				tick.Reset(wait)
				continue
			}
		}
		for _, r := range e.rails.List {
			if c, ok := r.Inner().(provider.Rechecker); ok {
				c.Recheck()
			}
		}
		next := recheckEvery
		if e.regions.Recheck() {
			next = region.Settled
		}
		looked = time.Now()
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
