package rails

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"

	"gorail/backend/provider"
)

// Movable are the rails that can follow a new address of their interface, by device.
func (s *Set) Movable() map[string][]*Rail {
	by := map[string][]*Rail{}
	for _, r := range s.List {
		d := r.Device()
		if _, ok := r.Inner().(provider.Mover); !ok || r.Waits() || d.Loopback || d.Hardware && d.Net == "" || !r.Addr().IsValid() {
			continue // of hardware without an interface here: it is another network namespace's
		}
		by[d.Name] = append(by[d.Name], r)
	}
	return by
}

// Interface is the name of the network interface that has a device's addresses.
func Interface(d provider.Device) string { return cmp.Or(d.Net, d.Name) }

// Homeless are those of the rails whose interface has not their address.
func Homeless(over []*Rail, has []netip.Prefix) []*Rail {
	return slices.DeleteFunc(slices.Clone(over), func(r *Rail) bool {
		return slices.ContainsFunc(has, func(p netip.Prefix) bool { return p.Addr() == r.Addr() })
	})
}

// errNoAddress is the error of Move if the interface has no address that a rail can have.
var errNoAddress = errors.New("the interface has no address of that family")

// Move gives a rail, whose interface has lost its address, another one of those that the interface has. elsewhere: also one of another subnet.
func (r *Rail) Move(has []netip.Prefix, elsewhere bool) error {
	subnet, _ := netip.ParsePrefix(r.Device().Subnet)
	err := errNoAddress
	for _, to := range Successors(has, r.Addr(), subnet, elsewhere) {
		if err = r.Inner().(provider.Mover).Move(to); err == nil {
			return nil
		}
	}
	return err
}

// Successors are the addresses of an interface that may take the place of one that it has lost, best first. Those of the same subnet reach the
// same peers. Those of other subnets follow if elsewhere is true. The family stays: an interface has the addresses of one family a moment before
// or after those of the other, and peers were paired by those of one.
func Successors(has []netip.Prefix, was netip.Addr, subnet netip.Prefix, elsewhere bool) (list []netip.Prefix) {
	for _, same := range []bool{true, false} {
		for _, p := range has {
			if a := p.Addr(); a.IsGlobalUnicast() && a.Is4() == was.Is4() && (p.Masked() == subnet) == same && (same || elsewhere) {
				list = append(list, p)
			}
		}
	}
	return list
}

// SetLost says why the rail's interface has had no address for a while; nil: it has one.
func (r *Rail) SetLost(why error) {
	if why == nil {
		r.lost.Store(nil)
	} else {
		r.lost.Store(&why)
	}
}

// Lost returns why no connection can be made over the rail: its interface has no address. nil: it has one.
func (r *Rail) Lost() error {
	if why := r.lost.Load(); why != nil {
		return *why
	}
	return nil
}
