package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
)

// resolveGID looks the GID up again after a change of the table. changed describes a change; err says why there is no GID any more. Open endpoints
// keep their GID.
func (r *rail) resolveGID() (changed string, err error) {
	list := r.entry.port.reachable(r.opt)
	r.mu.Lock()
	defer r.mu.Unlock()
	was, had := r.gid, r.noGID == nil
	g, err := r.again(list)
	if err != nil {
		err = fmt.Errorf("%s is gone: %w", was.addr.Unmap(), err)
		r.noGID = err
		if !had {
			return "", nil
		}
		return "", err
	}
	r.gid, r.noGID = g, nil
	if had && r.gid == was {
		return "", nil
	}
	return fmt.Sprintf("%s at index %d, was %s at %d", g.addr.Unmap(), g.index, was.addr.Unmap(), was.index), nil
}

// again returns the entry of the rail's own address, at any index. If it is gone, the engine follows the interface, and Move brings another
// address: any other that the table has may be one that no peer reaches. No interface of this network namespace: another address of the same
// rank, which peers can reach equally. Under mu.
func (r *rail) again(list []gid) (gid, error) {
	if own := r.entries(list, r.gid.addr); len(own) > 0 {
		return own[0], nil
	}
	if r.dev.Net != "" {
		return gid{}, fmt.Errorf("the GID table does not have it; %s gets another address, or this one again", r.dev.Net)
	}
	if r.opt.GIDIndex < 0 {
		list = slices.DeleteFunc(list, func(g gid) bool { return g.rank() != r.gid.rank() })
	}
	return chooseGID(list, r.entry.port.ethernet, r.opt.GIDIndex)
}

// entries returns the entries of an address with the rail's kind, that at the index of option gid_index first: after a change of addresses
// another one may be there. Under mu.
func (r *rail) entries(list []gid, addr netip.Addr) []gid {
	own := slices.DeleteFunc(slices.Clone(list), func(g gid) bool { return g.addr != addr || g.kind != r.gid.kind })
	if i := slices.IndexFunc(own, func(g gid) bool { return g.index == r.opt.GIDIndex }); i > 0 {
		own[0], own[i] = own[i], own[0]
	}
	return own
}

var (
	errStays = errors.New("the rail has the address with which it was opened, always")
	errNoGID = errors.New("the GID table does not have the address, or not as the kind of GID that the rail has")
)

// Move implements provider.Mover for RoCE. The kernel enters an interface's new address into the GID table a moment later. An InfiniBand rail needs
// no address.
func (r *rail) Move(to netip.Prefix) error {
	e := r.entry
	if !e.port.ethernet {
		return fmt.Errorf("%w: %s/%s: %w", provider.ErrUnusable, r.dev.Fabric, r.dev.Name, errStays)
	}
	list := e.port.reachable(r.opt)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.entries(list, netip.AddrFrom16(to.Addr().As16()))
	if len(now) == 0 {
		return fmt.Errorf("%w: %s/%s: %s: %w", provider.ErrUnusable, r.dev.Fabric, r.dev.Name, to.Addr(), errNoGID)
	}
	d := r.Device()
	d.Addr, d.Subnet = to.Addr().String(), to.Masked().String()
	r.gid, r.noGID = now[0], nil
	r.at.Store(&d)
	return nil
}

// sourceIs returns an error unless an index of the GID table has this GID. An entry that a queue pair uses stays, so after the transition to RTR this says
// which one the queue pair has got: between the endpoint's opening and its connection the index may have become free, and another address's.
func (r *rail) sourceIs(index int, own [16]byte) error {
	want := netip.AddrFrom16(own)
	has, err := netip.ParseAddr(gidWord(r.opt.Sys, r.entry.port.device, r.entry.port.number, "gids", index))
	if err == nil && has == want {
		return nil
	}
	return &clib.CallError{Call: fmt.Sprintf("connect from %s, which is not at index %d of the GID table any more,", want.Unmap(), index), Errno: syscall.EADDRNOTAVAIL}
}
