package engine

import (
	"context"
	"net/netip"
	"slices"

	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/topo"
)

// startWatcher watches the kernel's network devices and rails with events of their own.
func startWatcher(e *Engine) *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{cancel: cancel, addrs: make(chan struct{}, 1)}
	for _, r := range e.rails.List {
		if own, ok := r.Rail.(provider.Watcher); ok {
			w.all.Go(func() { e.watchRail(ctx, r, own) })
		}
	}
	if e.rails.Wide() {
		e.rails.Opened = func(r *rails.Rail) { w.opened(ctx, e, r) }
		w.all.Go(func() { e.spread(ctx) })
	}
	for _, r := range e.rails.List {
		if r.Joins() {
			w.all.Go(func() {
				if !e.rails.JoinWhenUp(ctx, r, e.regions.FillRail) {
					return
				}
				e.initiators.UseRail(r)
				e.targets.UseRail(r)
				if !e.rails.Wide() { // else spread fills it, and opened watches it
					e.watchInner(ctx, r)
				}
			})
		}
	}
	for _, r := range e.rails.List {
		if c, ok := r.Inner().(provider.Mapper); ok {
			w.all.Go(func() { e.forward(ctx, c) })
		}
	}
	w.all.Go(func() { e.recheck(ctx) })
	nets := slices.DeleteFunc(slices.Clone(e.rails.List), func(r *rails.Rail) bool { return r.Device().Loopback || r.Device().Addr == "" && !r.Joins() })
	if len(nets) > 0 {
		f := newFollower(e)
		w.all.Go(func() { e.watchNets(ctx, f.wants, w.readdressed) })
		w.all.Go(func() { f.run(ctx, w.addrs) })
		w.all.Go(func() { e.watchCarriers(ctx, nets) })
	}
	return w
}

// watchInner watches a rail that was opened after the engine was made, if it has events of its own.
func (e *Engine) watchInner(ctx context.Context, r *rails.Rail) {
	if own, ok := r.Inner().(provider.Watcher); ok && ctx.Err() == nil {
		e.watchRail(ctx, r, own)
	}
}

func (e *Engine) watchRail(ctx context.Context, r *rails.Rail, own provider.Watcher) {
	err := own.Watch(ctx, func(up bool, why string) {
		e.log.Info("rail event", "rail", r.Name(), "up", up, "event", why)
		e.railChanged(r.Device().Name, up)
	})
	if ctx.Err() == nil {
		e.log.Warn("no events from rail; only its progress shows whether it is up", "rail", r.Name(), "err", err)
	}
}

// readdressed gives the follower of addresses a token: addresses have changed, or may have.
func (w *watcher) readdressed() {
	select {
	case w.addrs <- struct{}{}:
	default:
	}
}

// watchNets watches network interfaces. look is called when addresses have changed, or may have, of an interface that is wanted.
func (e *Engine) watchNets(ctx context.Context, wanted func(name string) bool, look func()) {
	up := map[string]bool{}
	deaf := false
	topo.Watch(ctx, func(ev topo.Event) {
		if deaf {
			deaf = false
			e.log.Info("network devices report their events again")
		}
		if ev.Up {
			e.rails.Nudge(ev.Name)
		}
		if (ev.Addrs || ev.Gone) && wanted(ev.Name) {
			look()
		}
		if ev.Addrs {
			return
		}
		was, known := up[ev.Name]
		if up[ev.Name] = ev.Up; known && was != ev.Up {
			e.railChanged(ev.Name, ev.Up)
		}
	}, func(err error) {
		if !deaf {
			deaf = true
			e.log.Warn("no events from network devices; only the progress of rails shows whether they are up", "err", err)
		}
		look()
	})
}

func (w *watcher) stop() {
	w.mu.Lock()
	w.cancel()
	w.mu.Unlock()
	w.all.Wait()
}

// railChanged handles an up or down event of a network device.
func (e *Engine) railChanged(name string, up bool) {
	why := "the network device came up"
	if !up {
		why = "the network device went down"
	}
	var over []*rails.Rail
	addr := netip.Addr{}
	for _, r := range e.rails.List {
		if r.Device().Name == name {
			r.Down.Store(!up)
			if over = append(over, r); len(over) == 1 {
				addr = r.Addr()
			}
		}
	}
	e.targets.DeviceChanged(over, up, addr, why)
	e.initiators.DeviceChanged(name, up, addr, why)
}
