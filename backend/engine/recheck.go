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

// recheck looks whether registered memory is still what was registered: regularly, and when a peer has found that it is not. While there is no
// memory to look at, it sleeps until asked.
func (e *Engine) recheck(ctx context.Context) {
	keepLooking(ctx, e.regions.Renewals(), func() (next time.Duration) {
		more := e.regions.HasVRAM.Load() || e.regions.HasLent.Load()
		for _, r := range e.rails.List {
			if c, ok := r.Inner().(provider.Host); ok {
				more = c.Recheck() || more
			}
		}
		if e.regions.Recheck() {
			next = region.Settled
		} else if more {
			next = recheckEvery
		}
		e.rails.LogReports()
		return next
	})
}

// keepLooking looks as long after a look as that says, and when asked; 0: when asked. Who asks waits for the rest after the last look; the regular
// looks do not.
func keepLooking(ctx context.Context, asked <-chan struct{}, look func() (next time.Duration)) {
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
		began := time.Now()
		next := look()
		hear = nil
		rest.Reset(max(restLeast, restTimes*time.Since(began)))
		if tick.Stop(); next > 0 {
			tick.Reset(next)
		}
	}
}

// forward asks for a look when a peer has found a change over a rail.
func (e *Engine) forward(ctx context.Context, c provider.Mapper) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.Changed():
			e.regions.Outdated()
		}
	}
}
