package rails

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"gorail/backend/host"
	"gorail/backend/provider"
	"gorail/backend/topo"
)

// Bounds of the pause between tries of a late rail whose interface is up. The address may come later than the carrier.
const (
	firstJoin = 50 * time.Millisecond
	mostJoin  = 2 * time.Second
)

// Nudge retries the late rails of an interface after an event of that interface.
func (s *Set) Nudge(name string) {
	for _, r := range s.List {
		if r.Waits() && r.Device().Name == name {
			select {
			case r.late.wake <- struct{}{}:
			default:
			}
		}
	}
}

// Fill registers all memory on a rail that has just been opened. An error: the engine closes.
type Fill func(ctx context.Context, r *Rail) error

// JoinWhenUp opens a late rail after its interface or port has come up. It returns true when the rail has joined, with all memory, and
// false when ctx ends first: the caller lets sessions use the rail.
func (s *Set) JoinWhenUp(ctx context.Context, r *Rail, fill Fill) (joined bool) {
	var lastLogged string
	for pause := firstJoin; ; {
		err := s.join(ctx, r, fill)
		if err == nil || ctx.Err() != nil {
			return err == nil
		}
		again := (<-chan time.Time)(nil)
		if !errors.Is(err, errNoCarrier) {
			if err.Error() != lastLogged {
				lastLogged = err.Error()
				s.log.Warn("a network interface or port came up, but its rail cannot be used yet; retrying", "rail", r.Name(), "err", host.Advise(err))
			}
			again = time.After(pause)
			pause = min(2*pause, mostJoin)
		} else if r.Device().Hardware { // no event reports the state of an RDMA port
			again = time.After(mostJoin)
		}
		select {
		case <-ctx.Done():
			return false
		case <-r.late.wake:
			pause = firstJoin
		case <-again:
		}
	}
}

// join opens a late rail, and registers all memory on it. errNoCarrier: its interface is not up yet.
func (s *Set) join(ctx context.Context, r *Rail, fill Fill) error {
	d, err := s.findLate(ctx, r)
	if err != nil {
		return err
	}
	if r.late.demand != nil {
		s.arrived(r, d)
		return nil
	}
	opened, err := s.prov.Open(d)
	if err != nil {
		return err
	}
	if err := s.install(r, opened); err != nil {
		return err
	}
	if err := fill(ctx, r); err != nil {
		return err // the engine closes
	}
	r.late.up.Store(true)
	for _, note := range opened.Notes() {
		s.log.Warn("rail", "device", r.Name(), "note", note)
	}
	s.log.Info("rail joined: its network interface or port came up", "rail", r.Name(), "addr", d.Addr)
	return nil
}

// find finds the device of a rail as it is now.
func (s *Set) find(ctx context.Context, own provider.Device) ([]provider.Device, error) {
	found, err := s.prov.Discover(ctx, provider.Filter{Fabrics: []string{own.Fabric}, Devices: []string{own.Name}})
	return slices.DeleteFunc(found, func(d provider.Device) bool { return d.Name != own.Name || d.Fabric != own.Fabric }), err
}

// findLate finds the device of a late rail.
func (s *Set) findLate(ctx context.Context, r *Rail) (provider.Device, error) {
	own := r.Device()
	up := slices.ContainsFunc(s.Nets(), func(i topo.Interface) bool { return i.Up && i.Name == own.Name && len(i.Addrs) > 0 })
	machine := topo.Read(s.Sys)
	if own.Hardware {
		up = !FactsOf(machine)(own).Down
	}
	if !up {
		return own, errNoCarrier
	}
	found, err := s.find(ctx, own)
	if err != nil {
		return own, fmt.Errorf("find %s: %w", r.Name(), err)
	}
	beside := slices.DeleteFunc(s.Devices(), func(d provider.Device) bool { return d.Shard > 0 || d.Name == own.Name && d.Fabric == own.Fabric })
	fit, left := Choose(append(found, beside...), FactsOf(machine), ChooseOptions{Devices: s.opt.Devices, Fabrics: s.opt.Provider})
	for _, d := range fit {
		if d.Name == own.Name && d.Fabric == own.Fabric {
			if best := s.fastest(); s.wide && slow(d, best) {
				return own, fmt.Errorf("%s is left out: %s beside %s", r.Name(), speed(d.Mbps), speed(best))
			}
			d.Shard = own.Shard
			return d, nil
		}
	}
	for _, l := range left {
		if l.Device.Name == own.Name && l.Device.Fabric == own.Fabric && l.Device.Waits == "" && !FactsOf(machine)(l.Device).Down {
			return own, fmt.Errorf("%s is left out: %s", r.Name(), l.Reason)
		}
	}
	return own, errNoCarrier
}
