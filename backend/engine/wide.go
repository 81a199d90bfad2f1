package engine

import (
	"context"
	"time"

	"gorail/backend/rails"
)

// lookEvery is how often an engine of a wide machine looks for devices that no engine of the host uses. The others of a process that was
// killed have its devices within two seconds.
const lookEvery = 500 * time.Millisecond

// spread gives host memory more rails when others leave theirs, or when its own are down. It returns when ctx ends.
func (e *Engine) spread(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			e.widen(ctx)
			e.came(ctx)
		case <-e.rails.Wishes:
			e.came(ctx)
			if more := e.rails.Grant(); len(more) > 0 {
				e.fillRails(ctx, more, "a peer's memory is on their networks alone")
			}
		}
	}
}

// widen gives host memory more rails, if there are any to take.
func (e *Engine) widen(ctx context.Context) {
	if more := e.rails.Widen(); len(more) > 0 {
		e.fillRails(ctx, more, "other engines of this host have left them, or those before are down")
	}
}

// came gives host memory devices that were down when the engine was made.
func (e *Engine) came(ctx context.Context) {
	if more := e.rails.Came(); len(more) > 0 {
		e.fillRails(ctx, more, "these were down before")
	}
}

// fillRails registers host memory on rails, and tells all sessions.
func (e *Engine) fillRails(ctx context.Context, more []*rails.Rail, why string) {
	for _, r := range more {
		if e.regions.FillRail(ctx, r) != nil {
			return // the engine closes
		}
	}
	names := make([]string, len(more))
	for i, r := range more {
		names[i] = r.Name()
	}
	e.log.Info("host memory is on more rails: "+why, "rails", names)
	e.initiators.Wider()
	e.targets.Wider(more)
}

// opened begins to watch a rail that was opened on demand.
func (w *watcher) opened(ctx context.Context, e *Engine, r *rails.Rail) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ctx.Err() == nil {
		w.all.Go(func() { e.watchInner(ctx, r) })
	}
}
