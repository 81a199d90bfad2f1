package engine

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/topo"
)

// watcher hears of devices that go down and come up.
type watcher struct {
	cancel context.CancelFunc
	all    sync.WaitGroup
}

// startWatcher begins to listen, to the kernel's network devices and to rails that tell themselves.
func startWatcher(e *Engine) *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{cancel: cancel}
	for _, r := range e.rails {
		if own, ok := r.Rail.(provider.Watcher); ok {
			w.all.Go(func() { e.watchRail(ctx, r, own) })
		}
	}
	for _, r := range e.rails {
		if r.Joins() {
			w.all.Go(func() {
				e.railSet.JoinWhenUp(ctx, r, e)
				if own, ok := r.Inner().(provider.Watcher); ok && ctx.Err() == nil {
					e.watchRail(ctx, r, own)
				}
			})
		}
	}
	if slices.ContainsFunc(e.rails, func(r *rails.Rail) bool { return r.Joins() || !r.Device().Loopback && r.Device().Addr != "" }) {
		w.all.Go(func() { e.watchNets(ctx) })
	}
	return w
}

func (e *Engine) watchRail(ctx context.Context, r *rails.Rail, own provider.Watcher) {
	err := own.Watch(ctx, func(up bool, why string) {
		e.log.Info("rail event", "rail", r.Name(), "up", up, "event", why)
		e.railChanged(r.Device().Name, up)
	})
	if ctx.Err() == nil {
		e.log.Warn("events of a rail are not heard of; it is judged by its progress alone", "rail", r.Name(), "err", err)
	}
}

func (e *Engine) watchNets(ctx context.Context) {
	up := map[string]bool{}
	err := topo.Watch(ctx, func(ev topo.Event) {
		if ev.Up {
			e.railSet.Nudge(ev.Name)
		}
		was, known := up[ev.Name]
		if up[ev.Name] = ev.Up; known && was != ev.Up {
			e.railChanged(ev.Name, ev.Up)
		}
	})
	if ctx.Err() == nil {
		e.log.Warn("changes of network devices are not heard of; rails are judged by their progress alone", "err", err)
	}
}

func (w *watcher) stop() {
	w.cancel()
	w.all.Wait()
}

// watch looks for links that are stuck: a probe without an answer, and a link on which nothing moves while another is not
// stuck (else it may be the peer as a whole). Called by the sweeper.
func (r *remote) watch(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != ready {
		return
	}
	well := false
	for _, l := range r.links {
		if l.phase != working {
			continue
		}
		if s := l.l.Stats(); s.Completions != l.seen || s.InflightOps == 0 {
			l.seen, l.moved = s.Completions, now
		}
		well = well || now.Sub(l.moved) <= r.e.opt.RailTimeout
	}
	for _, l := range r.links {
		switch {
		case l.phase == probing && now.Sub(l.since) > probeTime && (l.proved || r.others(l) || len(proved(r.links)) > 0): // else proofLate ends it
			l.restLonger()
			l.stalled()
			r.fence(l, "no answer to a probe")
		case l.phase == working && well && now.Sub(l.moved) > r.e.opt.RailTimeout:
			l.stalled()
			r.fence(l, "nothing moves on it while other rails are well (option rail_timeout)")
		}
	}
}

// addrOf gives the address of the rail on a device.
func (e *Engine) addrOf(name string) netip.Addr {
	for _, r := range e.rails {
		if r.Device().Name == name {
			return r.Addr()
		}
	}
	return netip.Addr{}
}

const deviceDown = "the network device went down"

// railChanged: the system says that a network device went down or came up.
func (e *Engine) railChanged(name string, up bool) {
	remotes := e.sessions()
	e.mu.RLock()
	targets := slices.Collect(maps.Values(e.targets))
	e.mu.RUnlock()
	addr := e.addrOf(name)
	for _, rl := range e.rails {
		for _, t := range targets {
			if up && rl.Device().Name == name {
				go t.wantStart(rl) // not among the events, see onEvent
			}
		}
	}
	suspect := !up && addr.IsValid()
	if suspect {
		for _, t := range targets {
			t.in.Suspect(addr, deviceDown)
		}
	}
	for _, r := range remotes {
		r.events.do(e, func() { r.deviceChanged(name, up, addr) })
	}
}

// deviceChanged fences the links over a device that went down, if others can do their work, and tries those over one that came up.
func (r *remote) deviceChanged(name string, up bool, addr netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !up && addr.IsValid() && r.out != nil {
		r.out.Suspect(addr, deviceDown)
	}
	for _, l := range r.links {
		switch {
		case l.rail.Device().Name != name:
		case !l.up && up:
			r.startLink(l)
		case !up && (l.phase == working || l.phase == probing) && r.elsewhere(l):
			l.pause = firstRest
			r.fence(l, deviceDown)
		case up && (l.phase == resting || l.phase == probing):
			l.pause = 0
			r.fence(l, "the network device came up")
		}
	}
}
