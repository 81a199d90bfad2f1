package engine

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"gorail/backend/rails"
	"gorail/backend/rlimit"
	"gorail/backend/topo"
)

const (
	addressEvery = 100 * time.Millisecond // between looks at an interface that has just lost our address: no event tells every reason why a bind fails
	addressLater = 2 * time.Second        // and at one that has none for longer than addressGrace
	addressGrace = time.Second            // for a new address to come, before transfers fail that no other rail can take
)

// follower moves rails and the control channel when the kernel takes an address away from an interface and gives it another one: DHCP, a moved pod.
type follower struct {
	e       *Engine
	gone    map[string]*absence   // interfaces without the address of our rails
	control map[netip.Addr]string // the interface of each address that the control channel listens on
	said    map[string]bool       // warnings
}

// absence is the time in which an interface has no address for our rails.
type absence struct {
	since time.Time
	was   netip.Addr
	ended bool // sessions that only these rails serve are suspended
}

// followAddrs runs until ctx ends. changed gets a token when addresses have changed.
func (e *Engine) followAddrs(ctx context.Context, changed <-chan struct{}) {
	f := &follower{e: e, gone: map[string]*absence{}, control: map[netip.Addr]string{}, said: map[string]bool{}}
	for _, l := range localAddrs(e.rails.Nets()) {
		for _, a := range e.controlAddrs() {
			if a == l.addr && !a.IsLoopback() {
				f.control[a] = l.name
			}
		}
	}
	for timer := time.NewTimer(0); ; {
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-changed:
		case <-timer.C:
		}
		if pause := f.look(ctx); pause > 0 {
			timer.Reset(pause)
		}
	}
}

// controlAddrs are the addresses that the control channel listens on.
func (e *Engine) controlAddrs() (list []netip.Addr) {
	for _, text := range e.node.Addrs() {
		if a, err := netip.ParseAddrPort(text); err == nil {
			list = append(list, a.Addr().Unmap())
		}
	}
	return list
}

// look compares our addresses with the kernel's. It returns after what time it must look again without an event; 0: never.
func (f *follower) look(ctx context.Context) (again time.Duration) {
	nets := f.e.rails.Nets()
	if len(nets) == 0 { // the kernel does not answer
		return addressLater
	}
	type move struct {
		over []*rails.Rail
		was  netip.Addr
		why  string
	}
	var moved []move
	for name, over := range f.e.rails.Movable() {
		lost := rails.Homeless(over, topo.Addrs(nets, name))
		if len(lost) == 0 {
			f.back(name)
			continue
		}
		was := lost[0].Addr()
		if err := f.e.rails.Move(ctx, lost); err != nil {
			f.missing(name, over, was, err)
			continue
		}
		delete(f.gone, name)
		why := fmt.Sprintf("%s of %s is gone, now %s", was, name, lost[0].Addr())
		f.e.log.Warn(why, "rail", lost[0].Name())
		moved = append(moved, move{lost, was, why})
	}
	heard, failed := f.moveControl(nets)
	if heard {
		f.e.node.Tell()
	}
	for _, m := range moved { // peers that we reach get the control addresses first
		f.e.targets.RailsMoved(m.over, m.was, m.why)
		f.e.initiators.RailsMoved(m.over, m.was, m.why)
	}
	for _, a := range f.gone {
		failed = failed || !a.ended
		again = addressLater
	}
	if failed {
		again = addressEvery
	}
	return again
}

// back handles an interface that has the address of our rails.
func (f *follower) back(name string) {
	if f.gone[name] != nil {
		delete(f.gone, name)
		f.e.log.Info("a network interface has its address again", "interface", name)
		f.e.railChanged(name, true)
	}
}

// missing handles an interface that has no address for our rails, or none yet.
func (f *follower) missing(name string, over []*rails.Rail, was netip.Addr, err error) {
	a := f.gone[name]
	if a == nil {
		a = &absence{since: time.Now(), was: was}
		f.gone[name] = a
		why := fmt.Sprintf("%s of %s is gone", was, name)
		f.e.log.Warn("a network interface has lost its address, and has no other yet", "interface", name, "addr", was, "rail", over[0].Name(), "err", rlimit.Advise(err))
		f.e.targets.DeviceChanged(over, false, was, why)
		f.e.initiators.DeviceChanged(name, false, was, why)
	}
	if !a.ended && time.Since(a.since) > addressGrace {
		a.ended = true
		f.e.initiators.RailsGone(over, fmt.Errorf("%s of %s is gone, and the interface has no other address", was, name))
	}
}

// moveControl moves the control channel's listeners away from addresses that are gone. failed: one could not move yet.
func (f *follower) moveControl(nets []topo.Interface) (moved, failed bool) {
	listens := f.e.controlAddrs()
	for was, name := range f.control {
		if slices.ContainsFunc(topo.Addrs(nets, name), func(p netip.Prefix) bool { return p.Addr() == was }) {
			continue
		}
		for _, to := range rails.Usable(nets, name, was) {
			if slices.Contains(listens, to) {
				continue
			}
			if err := f.e.node.Move(was, to); err != nil {
				failed = true
				if text := err.Error(); !f.said[text] {
					f.said[text] = true
					f.e.log.Warn("the control channel cannot listen on a new address yet", "was", was, "now", to, "err", rlimit.Advise(err))
				}
				continue
			}
			delete(f.control, was)
			f.control[to] = name
			listens = append(listens, to)
			moved = true
			f.e.log.Info("the control channel listens on another address", "was", was, "now", to, "interface", name)
			break
		}
	}
	return moved, failed
}
