package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/provider"
	"gorail/backend/rail"
	"gorail/backend/topo"
	"gorail/backend/wire"
)

// How soon a late rail is tried again while its interface is up: its address may come later than its carrier.
const (
	firstJoin = 50 * time.Millisecond
	mostJoin  = 2 * time.Second
)

// nudge tells late rails that something has happened to an interface.
func (e *Engine) nudge(name string) {
	for _, r := range e.rails {
		if r.waits() && r.Device().Name == name {
			select {
			case r.late.wake <- struct{}{}:
			default:
			}
		}
	}
}

// joinWhenUp opens a late rail once its interface is up, and then hears of its device.
func (e *Engine) joinWhenUp(ctx context.Context, r *railState) {
	var said string
	for pause := firstJoin; ; {
		err := e.join(ctx, r)
		if err == nil {
			if own, ok := r.inner().(provider.Watcher); ok {
				e.watchRail(ctx, r, own)
			}
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		again := (<-chan time.Time)(nil)
		if !errors.Is(err, errNoCarrier) {
			if err.Error() != said {
				said = err.Error()
				e.log.Warn("a network interface or port came up, but its rail cannot be used; it is tried again", "rail", r.name(), "err", advise(err))
			}
			again = time.After(pause)
			pause = min(2*pause, mostJoin)
		} else if r.Device().Hardware { // nobody tells us of its port
			again = time.After(mostJoin)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.late.wake:
			pause = firstJoin
		case <-again:
		}
	}
}

// join opens a late rail, registers all memory on it, and lets sessions use it. errNoCarrier: its interface is not up yet.
func (e *Engine) join(ctx context.Context, r *railState) error {
	d, err := e.findLate(ctx, r)
	if err != nil {
		return err
	}
	opened, err := e.prov.Open(d)
	if err != nil {
		return err
	}
	if opened.Caps() != r.caps {
		_ = opened.Close()
		return fmt.Errorf("rail %s can do other things than the rails of its fabric that were open first; make the agent anew to use it", r.name())
	}
	if err := e.core.SetRail(r.index, opened.Core()); err != nil {
		_ = opened.Close()
		return fmt.Errorf("rail %s: %w", r.name(), err)
	}
	r.late.rail.Store(&opened) // what is registered from now on is registered on it, too
	if err := e.registerLate(ctx, r); err != nil {
		return nil // the engine closes
	}
	r.late.up.Store(true)
	for _, note := range opened.Notes() {
		e.log.Warn("rail", "device", r.name(), "note", note)
	}
	e.log.Info("rail joined: its network interface or port came up", "rail", r.name(), "addr", d.Addr)
	e.useLate(r)
	return nil
}

// findLate looks for the device of a late rail.
func (e *Engine) findLate(ctx context.Context, r *railState) (provider.Device, error) {
	own := r.Device()
	up := slices.ContainsFunc(e.nets(), func(i netInterface) bool { return i.up && i.name == own.Name && len(i.addrs) > 0 })
	machine := topo.Read(os.DirFS("/sys"))
	if own.Hardware {
		up = !rail.FactsOf(machine)(own).Down
	}
	if !up {
		return own, errNoCarrier
	}
	found, err := e.prov.Discover(ctx, provider.Filter{Fabrics: []string{own.Fabric}, Devices: []string{own.Name}})
	if err != nil {
		return own, fmt.Errorf("find %s: %w", r.name(), err)
	}
	found = slices.DeleteFunc(found, func(d provider.Device) bool { return d.Name != own.Name || d.Fabric != own.Fabric })
	beside := slices.DeleteFunc(e.devices(), func(d provider.Device) bool { return d.Name == own.Name && d.Fabric == own.Fabric })
	fit, left := rail.Choose(append(found, beside...), rail.FactsOf(machine), rail.ChooseOptions{Devices: e.opt.Devices, Fabrics: e.opt.Provider})
	for _, d := range fit {
		if d.Name == own.Name && d.Fabric == own.Fabric {
			return d, nil
		}
	}
	for _, l := range left {
		if l.Device.Name == own.Name && l.Device.Fabric == own.Fabric && l.Device.Waits == "" && !rail.FactsOf(machine)(l.Device).Down {
			return own, fmt.Errorf("%s is left out: %s", r.name(), l.Reason)
		}
	}
	return own, errNoCarrier
}

// registerLate registers all memory of this side on a rail that has just been opened. An error: the engine closes.
func (e *Engine) registerLate(ctx context.Context, r *railState) error {
	e.localMu.Lock()
	local := slices.Collect(maps.Values(e.local))
	e.localMu.Unlock()
	for _, g := range local {
		select {
		case <-g.ready:
		case <-ctx.Done():
			return ctx.Err()
		}
		e.localMu.Lock()
		if g.refs > 0 && g.parts == nil && g.Mem == memDRAM && g.mrs[r.index] == nil {
			e.registerOn(g, r)
		}
		e.localMu.Unlock()
	}
	return nil
}

// registerOn registers one region on one more rail: only what names that rail looks at what this writes. Under localMu.
func (e *Engine) registerOn(g *region, r *railState) {
	ref, _, err := r.cache.Acquire(g.Addr, g.Len)
	if err != nil {
		e.log.Warn("memory not registered on a rail", "rail", r.name(), "addr", fmt.Sprintf("%#x", g.Addr), "len", g.Len, "err", err)
		return
	}
	g.mrs[r.index] = ref
	key := core.Key{}
	if m, has := ref.Handle(); has {
		key.Desc = m.Desc()
	}
	g.core.SetKey(r.index, key)
	g.rails.Or(1 << r.index)
}

// useLate brings up the links of the sessions that are there.
func (e *Engine) useLate(r *railState) {
	for _, s := range e.sessions() {
		s.events.do(e, func() { s.startLinks(r) })
	}
	e.mu.RLock()
	targets := slices.Collect(maps.Values(e.targets))
	e.mu.RUnlock()
	for _, t := range targets {
		go t.wantStart(r) // not among the events, see onEvent
	}
}

// startLinks tries the links over a rail that have never had an endpoint on both sides.
func (r *remote) startLinks(rl *railState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.links {
		if l.rail == rl {
			r.startLink(l)
		}
	}
}

// startLink opens our endpoint of a link that is not up yet, and asks the peer for its own, as a fence does. Under r.mu.
func (r *remote) startLink(l *link) {
	if r.state != ready || l.up || l.shared() {
		return
	}
	if l.phase == fencing {
		l.again = true
		return
	}
	ep, err := l.rail.OpenEndpoint()
	if err != nil {
		r.e.log.Debug("a rail is not there yet for a peer", "peer", r.name, "rail", l.rail.name(), "err", err)
		return
	}
	l.ep, l.again = ep, false
	l.enter(fencing)
	r.out.Fence(r.e.ids.Add(1), uint8(l.num), l.epoch, ep.Addr())
}

// started has the peer's answer: the link begins with a probe. Under r.mu.
func (r *remote) started(l *link, err error) {
	if err == nil {
		r.change()
		err = r.e.attach(l, r.sess, l.peerID, core.Initiator, true)
	}
	if err == nil {
		l.late = true
		l.enter(probing)
		l.l.SetWeight(r.weight(l))
		return
	}
	r.e.log.Debug("a rail is not there yet at a peer", "peer", r.name, "rail", l.rail.name(), "err", err)
	_ = r.e.quiesce(l) // it is in the log
	l.enter(resting)
	if l.up { // it was attached in part
		r.later(l, firstRest, "another try")
	} else if l.again { // the peer's rail came up while its answer was under way
		r.startLink(l)
	}
}

// askAgain asks for the keys of regions that the peer had registered before the rail of its that a link goes to was there. Under r.mu.
func (r *remote) askAgain(peerRail int) {
	var list []*region
	for _, g := range r.regions {
		if g.keyed && !g.asked && g.parts == nil && g.Mem == memDRAM && g.rails.Load()&(1<<peerRail) == 0 {
			if list = append(list, g); len(list) == wire.MaxRanges {
				r.ask(list)
				list = nil
			}
		}
	}
	if len(list) > 0 {
		r.ask(list)
	}
}

// takeMore adds keys of rails to a region that has some: what is posted names others. Under r.mu.
func (r *remote) takeMore(g *region, entry wire.KeyEntry) {
	if !entry.Known || entry.Region != g.targetID {
		return // it is being taken back
	}
	for _, rk := range entry.Rails {
		if bit := uint64(1) << rk.Rail; int(rk.Rail) < core.Slots(r.e.opt) && g.rails.Load()&bit == 0 {
			g.core.SetKey(int(rk.Rail), core.Key{Key: rk.Key, Base: rk.Base})
			g.rails.Or(bit)
		}
	}
}

// wantStart asks the initiator for the links over a rail that has just come up.
func (t *target) wantStart(rl *railState) {
	if !t.e.enter() {
		return
	}
	defer t.e.leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.links {
		if !t.gone && !t.frozen && l.rail == rl && !l.up {
			t.in.WantFence(uint8(l.num), l.epoch)
		}
	}
}

// start opens our end of a link that has never been up, for an initiator whose endpoint is there. Under t.mu.
func (t *target) start(l *link, f wire.Fence) ([]byte, error) {
	_ = t.e.quiesce(l) // it is in the log
	if len(f.Addr) == 0 {
		return nil, errors.New("the peer has no endpoint for it")
	}
	ep, err := l.rail.OpenEndpoint()
	if err != nil {
		return nil, err
	}
	l.ep, l.epoch = ep, f.Epoch
	if err := t.e.reachFor(ep, f.Addr, t.from()); err != nil {
		return nil, err
	}
	l.enter(working)
	return ep.Addr(), t.e.attach(l, t.sess, l.peerID, core.Target, false)
}
