package ofi

import (
	"net/netip"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/sockets"
)

// Endpoints of the tcp family listen for connections; libfabric/accept_filter.c explains the consequences.

var _ provider.AcceptFilter = (*endpoint)(nil)

// Admit implements provider.AcceptFilter.
func (e *endpoint) Admit(from []netip.Addr) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.from = from
}

// attachFilter finds the endpoint's listening socket and attaches a filter that admits nobody. The caller has held the rail
// since the endpoint was opened.
func (e *endpoint) attachFilter(hint int) {
	own, ok := sockets.NameOf(e.addr)
	if !ok {
		return
	}
	fd := listener(e.rail.files, own, hint)
	if fd < 0 {
		e.rail.noFilter = syscall.ENOENT
		return
	}
	sockets.KeepFromChildren(fd)
	if err := sockets.Filter(fd, sockets.Admitting()); err != nil {
		e.rail.noFilter = err
		return
	}
	e.own, e.rail.listening[own] = own, e.c
	e.c.Filtered(fd)
}

// listener finds a listening socket by its address. It tries hint first: the descriptor that was free before the
// endpoint was opened.
func listener(files sockets.Files, own sockets.Name, hint int) int {
	const nearby = 8 // the first one, unless other threads took descriptors
	at := func(fd int) bool {
		name, _ := sockets.Own(fd)
		return name == own && sockets.Listens(fd)
	}
	for fd := hint; hint >= 0 && fd < hint+nearby; fd++ {
		if at(fd) {
			return fd
		}
	}
	found := -1
	_ = files.Each(func(fd int) bool {
		if at(fd) {
			found = fd
		}
		return found < 0
	})
	return found
}

// admit lets the peer connect from the address of its endpoint, from the addresses given to Admit, and from those of
// option data_sources. Under mu.
func (e *endpoint) admit(peer []byte) error {
	if !e.rail.entry.IP || !e.rail.quirks.perPeer {
		return nil
	}
	from := append([]netip.Prefix{sockets.Single(sockets.Addr(peer))}, e.rail.ports.Sources...)
	for _, a := range e.from {
		from = append(from, sockets.Single(a))
	}
	if errno := e.c.Admit(sockets.Admitting(from...)); errno != 0 {
		return e.rail.error(provider.ErrEndpoint, e.rail.lib().Errno("SO_ATTACH_FILTER on the listening socket", errno))
	}
	return nil
}

// Shut implements provider.AcceptFilter.
func (e *endpoint) Shut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return
	}
	if e.c.Shut() {
		e.rail.sweepSoon(sweepAfter)
	}
}

// Ends implements provider.AcceptFilter.
func (e *endpoint) Ends() (own, peer string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return sockets.Text(e.addr), sockets.Text(e.peer)
}
