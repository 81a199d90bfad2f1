package engine

import (
	"context"
	"slices"

	"gorail/backend/topo"
)

// watcher hears of network devices that go down and come up.
type watcher struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startWatcher begins to listen; nil when no rail is a network device whose loss others could make up for.
func startWatcher(e *Engine) *watcher {
	if !slices.ContainsFunc(e.rails, func(r *railState) bool { return !r.Device().Loopback && r.Device().Addr != "" }) {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{cancel, make(chan struct{})}
	up := map[string]bool{}
	go func() {
		defer close(w.done)
		err := topo.Watch(ctx, func(ev topo.Event) {
			was, known := up[ev.Name]
			if up[ev.Name] = ev.Up; known && was != ev.Up {
				e.railChanged(ev.Name, ev.Up)
			}
		})
		if ctx.Err() == nil {
			e.log.Warn("changes of network devices are not heard of; rails are judged by their progress alone", "err", err)
		}
	}()
	return w
}

func (w *watcher) stop() {
	w.cancel()
	<-w.done
}
