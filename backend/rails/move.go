package rails

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// Movable are the rails that can follow a new address of their interface, by interface.
func (s *Set) Movable() map[string][]*Rail {
	by := map[string][]*Rail{}
	for _, r := range s.List {
		if _, ok := r.Inner().(provider.Mover); ok && !r.Waits() && !r.Device().Loopback {
			by[r.Device().Name] = append(by[r.Device().Name], r)
		}
	}
	return by
}

// Homeless are those of the rails whose interface has not their address.
func Homeless(over []*Rail, has []netip.Prefix) []*Rail {
	return slices.DeleteFunc(slices.Clone(over), func(r *Rail) bool {
		return slices.ContainsFunc(has, func(p netip.Prefix) bool { return p.Addr() == r.Addr() })
	})
}

// errNoAddress is the error of Move if the interface has no address that a rail can have.
var errNoAddress = errors.New("the interface has no address")

// Move gives rails over one interface its address of now. On error some may have moved: call it again with the others.
func (s *Set) Move(ctx context.Context, over []*Rail) error {
	found, err := s.find(ctx, over[0].Device())
	if err != nil || len(found) == 0 {
		return fmt.Errorf("%w: %w", errNoAddress, err)
	}
	for _, r := range over {
		if err := r.Inner().(provider.Mover).Move(found[0]); err != nil {
			return err
		}
	}
	return nil
}

// Usable returns the addresses of an interface that peers on other hosts may reach, best first: those of the given family, then others.
func Usable(list []topo.Interface, name string, like netip.Addr) (addrs []netip.Addr) {
	for _, same := range []bool{true, false} {
		for _, p := range topo.Addrs(list, name) {
			if a := p.Addr(); a.IsGlobalUnicast() && (a.Is4() == like.Is4()) == same {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs
}
