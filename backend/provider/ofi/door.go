package ofi

/*
#include "ofi.h"
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/provider"
)

// Endpoints of the tcp family listen; door.c has what that means.

const (
	sweepAfter = 50 * time.Millisecond // peers often connect many at a time
	sweepAgain = time.Second           // no descriptor was left to look with
	tellAgain  = time.Minute
	mostNets   = 32
)

var (
	_ provider.Door   = (*endpoint)(nil)
	_ provider.Warner = (*rail)(nil)
)

// Admit implements provider.Door.
func (e *endpoint) Admit(from []netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.from = from
}

// admit lets the peer connect: from the address of its endpoint, from those that Admit was given, and from those of the option. Under mu.
func (e *endpoint) admit(peer []byte) error {
	if !e.rail.entry.ip || !e.rail.caps.CanFence {
		return nil
	}
	from := append([]netip.Prefix{single(sockaddr(peer))}, e.rail.ports.Sources...)
	for _, a := range e.from {
		from = append(from, single(a))
	}
	nets := networks(from)
	if rc := C.ofi_door_admit(e.rail.c, e.c, unsafe.SliceData(nets), C.int(len(nets))); rc != 0 {
		return e.rail.error(provider.ErrEndpoint, "SO_ATTACH_FILTER on its listening socket", rc)
	}
	return nil
}

// networks are for C; invalid ones are left out, and what the filter has no room for.
func networks(from []netip.Prefix) (nets []C.ofi_net) {
	for _, p := range from {
		if !p.IsValid() || len(nets) == mostNets {
			continue
		}
		net := C.ofi_net{bits: C.uint8_t(p.Bits())}
		if p.Addr().Is6() {
			net.v6 = 1
		}
		for i, b := range p.Addr().AsSlice() {
			net.ip[i] = C.uint8_t(b)
		}
		nets = append(nets, net)
	}
	return nets
}

// filter lets a listening socket take connections of these networks alone.
func filter(fd int, from []netip.Prefix) error {
	nets := networks(from)
	if rc := C.ofi_door_filter(C.int(fd), unsafe.SliceData(nets), C.int(len(nets))); rc != 0 {
		return syscall.Errno(-rc)
	}
	return nil
}

// single is the network of one address, in the form that packets have it.
func single(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}

// Shut implements provider.Door.
func (e *endpoint) Shut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return
	}
	C.gr_rail_lock(&e.rail.c.base)
	C.ofi_door_shut(e.rail.c, e.c)
	unswept := e.c.unswept != 0
	C.gr_rail_unlock(&e.rail.c.base)
	if unswept {
		e.rail.sweepSoon(sweepAfter)
	}
}

// sweepSoon breaks connections of endpoints that admit nobody any more, all at once.
func (r *rail) sweepSoon(after time.Duration) {
	r.newsMu.Lock()
	defer r.newsMu.Unlock()
	if r.sweeping {
		return
	}
	r.sweeping = true
	time.AfterFunc(after, func() {
		r.newsMu.Lock()
		r.sweeping = false
		r.newsMu.Unlock()
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.closed && C.ofi_door_sweep(r.c) < 0 {
			r.sweepSoon(sweepAgain)
		}
	})
}

// Ends implements provider.Door.
func (e *endpoint) Ends() (own, peer string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return socket(e.addr), socket(e.peer)
}

// socket is the text of a struct sockaddr_in or sockaddr_in6; "" of anything else.
func socket(b []byte) string {
	a := sockaddr(b)
	if !a.IsValid() {
		return ""
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[2:])).String()
}

// Warnings implements provider.Warner.
func (r *rail) Warnings() (news []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	C.gr_rail_lock(&r.c.base)
	unfit, turned := r.c.no_door, uint64(r.c.turned_away)
	C.gr_rail_unlock(&r.c.base)
	r.newsMu.Lock()
	defer r.newsMu.Unlock()
	if unfit != 0 && !r.said {
		r.said = true
		news = append(news, fmt.Sprintf("its listening sockets take connections from any address, and libfabric's tcp trusts those: "+
			"no filter could be set (%v); close its ports to strangers by a firewall (option data_port)", syscall.Errno(-unfit)))
	}
	if turned > r.turned && time.Since(r.turnedAt) > tellAgain {
		news = append(news, fmt.Sprintf("%d connections of peers were reset: the process has no file descriptor left for them: raise the limit with ulimit -n",
			turned-r.turned))
		r.turned, r.turnedAt = turned, time.Now()
	}
	return news
}

// portsUsed explains why an endpoint got no port.
func (r *rail) portsUsed(err error, rc C.int) error {
	if r.ports.First == 0 || syscall.Errno(-rc) != syscall.EADDRINUSE {
		return err
	}
	return fmt.Errorf("%w: every port of option data_port=%d-%d is in use at %s: each connection to or from a peer listens on one; "+
		"give a wider range, and each process of this host one of its own", err, r.ports.First, r.ports.Last, r.dev.Addr)
}
