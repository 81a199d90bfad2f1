package engine

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"gorail/backend/host"
	"gorail/backend/rails"
	"gorail/backend/topo"
)

const (
	addressEvery = 100 * time.Millisecond // between looks at an interface that has just lost our address: no event tells every reason why a bind fails
	addressLater = 2 * time.Second        // and at one that has lost it for longer than addressGrace
	addressGrace = time.Second            // for a new address of the same subnet to come. Then one of another serves, or transfers fail that no other rail can take
)

// follower moves rails and the control channel when the kernel takes an address away from an interface and gives it another one: DHCP, a moved pod.
type follower struct {
	e       *Engine
	gone    map[string]*absence      // devices whose rails have lost their address
	control map[netip.Addr]*control  // the addresses that the control channel listens on
	names   atomic.Pointer[[]string] // of the interfaces in control
}

// absence is the time in which a device has no address for its rails.
type absence struct {
	since time.Time
	was   netip.Addr
	moved []*rails.Rail // those of its rails that have another address already
	told  bool          // logged, and its links are fenced
	late  bool          // longer than addressGrace
}

// control is an address that the control channel listens on.
type control struct {
	name   string // of its interface
	subnet netip.Prefix
	gone   time.Time // the interface has lost it; zero: it has it
	late   bool      // longer than addressGrace
	said   string    // why the control channel cannot follow
}

func newFollower(e *Engine) *follower {
	f := &follower{e: e, gone: map[string]*absence{}, control: map[netip.Addr]*control{}}
	for _, i := range e.rails.Nets() {
		for _, p := range i.Addrs {
			if a := p.Addr().Unmap(); !a.IsLoopback() && slices.Contains(e.controlAddrs(), a) {
				f.control[a] = &control{name: i.Name, subnet: p.Masked()}
			}
		}
	}
	f.watch()
	return f
}

func (f *follower) watch() {
	var names []string
	for _, c := range f.control {
		names = append(names, c.name)
	}
	f.names.Store(&names)
}

// wants reports that a change of an interface's addresses concerns us: a host of containers has a thousand interfaces that don't.
func (f *follower) wants(name string) bool {
	return slices.Contains(*f.names.Load(), name) ||
		slices.ContainsFunc(f.e.rails.List, func(r *rails.Rail) bool { return rails.Interface(r.Device()) == name })
}

// run runs until ctx ends. changed gets a token when addresses have changed.
func (f *follower) run(ctx context.Context, changed <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-timer.C:
		}
		if pause := f.look(); pause > 0 {
			timer.Reset(pause)
		} else {
			timer.Stop()
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
func (f *follower) look() (again time.Duration) {
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
	for device, over := range f.e.rails.Movable() {
		name := rails.Interface(over[0].Device())
		has := topo.Addrs(nets, name)
		lost := rails.Homeless(over, has)
		if over[0].Device().Hardware && holder(nets, over[0].Addr()) != "" { // on another interface of the device: a bond, a VLAN
			lost = nil
		}
		if len(lost) == 0 && f.gone[device] == nil {
			continue
		}
		a := f.gone[device]
		if a == nil {
			a = &absence{since: time.Now(), was: lost[0].Addr()}
			f.gone[device] = a
		}
		if err := f.move(a, lost, has); err != nil {
			f.missing(a, name, over, err)
			continue
		}
		delete(f.gone, device)
		for _, r := range over {
			r.SetLost(nil)
			r.Away.Store(false)
		}
		if len(a.moved) == 0 {
			f.e.log.Info("a network interface has its address again", "interface", name)
			f.e.railChanged(device, true)
			continue
		}
		why := fmt.Sprintf("%s of %s is gone, now %s", a.was, name, a.moved[0].Addr())
		f.e.log.Warn(why, "rail", a.moved[0].Name())
		moved = append(moved, move{over, a.was, why}) // all: those that did not move were fenced when the address was gone
	}
	heard := f.moveControl(nets)
	if heard {
		f.e.node.Tell()
	}
	f.watch()
	for _, m := range moved { // peers that we reach get the control addresses first
		f.e.targets.RailsMoved(m.over, m.was, m.why)
		f.e.initiators.RailsMoved(m.over, m.was, m.why)
	}
	return f.again()
}

// again returns after what time addresses that are missing must be looked for again; 0: none is missing.
func (f *follower) again() (pause time.Duration) {
	for _, a := range f.gone {
		if pause = addressLater; !a.late {
			return addressEvery
		}
	}
	for _, c := range f.control {
		if !c.gone.IsZero() {
			if pause = addressLater; !c.late {
				return addressEvery
			}
		}
	}
	return pause
}

// move moves the rails of a device that have lost their address.
func (f *follower) move(a *absence, lost []*rails.Rail, has []netip.Prefix) error {
	for _, r := range lost {
		if err := r.Move(has, time.Since(a.since) > addressGrace); err != nil {
			return err
		}
		a.moved = append(a.moved, r)
	}
	return nil
}

// missing handles a device whose rails have lost their address, and have no other or none yet.
func (f *follower) missing(a *absence, name string, over []*rails.Rail, err error) {
	if !a.told {
		a.told = true
		for _, r := range over {
			r.Away.Store(true)
		}
		why := fmt.Sprintf("%s of %s is gone", a.was, name)
		f.e.log.Warn("a network interface has lost its address, and has no other yet", "interface", name, "addr", a.was, "rail", over[0].Name(), "err", host.Advise(err))
		f.e.targets.DeviceChanged(over, false, a.was, why)
		f.e.initiators.RailsLost(over, a.was, why)
	}
	if time.Since(a.since) <= addressGrace {
		return
	}
	if !a.late {
		a.late = true
		why := fmt.Errorf("%s of %s is gone, and the rail has no other address", a.was, name)
		for _, r := range over {
			r.SetLost(why)
		}
	}
	f.e.initiators.RailsGone(over[0].Lost())
}

// moveControl moves the control channel's listeners away from addresses that are gone.
func (f *follower) moveControl(nets []topo.Interface) (moved bool) {
	listens := f.e.controlAddrs()
	for was, c := range f.control {
		if at := holder(nets, was); at != "" {
			c.name, c.gone, c.late = at, time.Time{}, false // it may have gone to another interface
			continue
		}
		if c.gone.IsZero() {
			c.gone = time.Now()
		}
		c.late = time.Since(c.gone) > addressGrace
		for _, to := range rails.Successors(topo.Addrs(nets, c.name), was, c.subnet, c.late) {
			if slices.Contains(listens, to.Addr()) {
				continue
			}
			if err := f.e.node.Move(was, to.Addr()); err != nil {
				if text := err.Error(); c.said != text {
					c.said = text
					f.e.log.Warn("the control channel cannot listen on a new address yet", "was", was, "now", to.Addr(), "err", host.Advise(err))
				}
				continue
			}
			delete(f.control, was)
			f.control[to.Addr()] = &control{name: c.name, subnet: to.Masked()}
			listens = append(listens, to.Addr())
			moved = true
			f.e.log.Info("the control channel listens on another address", "was", was, "now", to.Addr(), "interface", c.name)
			break
		}
	}
	return moved
}

// holder is the interface that has an address; "": none has it.
func holder(nets []topo.Interface, addr netip.Addr) string {
	for _, i := range nets {
		if slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr().Unmap() == addr }) {
			return i.Name
		}
	}
	return ""
}
