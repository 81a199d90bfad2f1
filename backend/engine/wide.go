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
		}
	}
}

// widen registers host memory on more rails, if there are any to take, and tells all sessions.
func (e *Engine) widen(ctx context.Context) {
	more := e.rails.Widen()
	for _, r := range more {
		if e.regions.FillRail(ctx, r) != nil {
			return // the engine closes
		}
	}
	if len(more) == 0 {
		return
	}
	names := make([]string, len(more))
	for i, r := range more {
		names[i] = r.Name()
	}
	e.log.Info("host memory is on more rails: no other engine of this host uses them, or those before are down", "rails", names)
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
