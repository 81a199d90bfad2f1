package ofi

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/sockets"
)

// Endpoints of the tcp family listen; door.c has what that means.

const tellAgain = time.Minute

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

// fit finds the endpoint's listening socket, which admits nobody from then on. Under hold, since the endpoint was made.
func (e *endpoint) fit(hint int) {
	own, ok := sockets.NameOf(e.addr)
	if !ok {
		return
	}
	fd := e.rail.listener(own, hint)
	if fd < 0 {
		e.rail.noDoor = syscall.ENOENT
		return
	}
	if err := sockets.Filter(fd, nil); err != nil {
		e.rail.noDoor = err
		return
	}
	e.own, e.c.listener = own, cInt(fd)
	e.rail.listening[own] = e
	turnAway(e.rail.c, fd)
}

// listener finds a listening socket by its address, first near the descriptor that was free before it was made.
func (r *rail) listener(own sockets.Name, hint int) int {
	const nearby = 8 // but for other threads it is the first
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
	_ = r.files.Each(func(fd int) bool {
		if at(fd) {
			found = fd
		}
		return found < 0
	})
	return found
}

// admit lets the peer connect: from the address of its endpoint, from those that Admit was given, and from those of the option. Under mu.
func (e *endpoint) admit(peer []byte) error {
	if !e.rail.entry.ip || !e.rail.quirks.perPeer {
		return nil
	}
	from := append([]netip.Prefix{sockets.Single(sockets.Addr(peer))}, e.rail.ports.Sources...)
	for _, a := range e.from {
		from = append(from, sockets.Single(a))
	}
	var err error
	e.rail.hold(func() {
		if e.c.listener < 0 {
			return
		}
		if err = sockets.Filter(int(e.c.listener), from); err == nil {
			openDoor(e.rail.c, e.c)
		}
	})
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return e.rail.error(provider.ErrEndpoint, e.rail.lib().errno("SO_ATTACH_FILTER on its listening socket", errno))
	}
	return nil
}

// Shut implements provider.Door.
func (e *endpoint) Shut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.c == nil {
		return
	}
	unswept := false
	e.rail.hold(func() {
		shutDoor(e.rail.c, e.c)
		unswept = e.c.unswept != 0
	})
	if unswept {
		e.rail.sweepSoon(sweepAfter)
	}
}

// Ends implements provider.Door.
func (e *endpoint) Ends() (own, peer string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return sockets.Text(e.addr), sockets.Text(e.peer)
}

// news is what the log is told of a rail.
type news struct {
	said     bool   // that listening sockets can't be filtered
	turned   uint64 // connections turned away, as told last
	turnedAt time.Time
}

// Warnings implements provider.Warner.
func (r *rail) Warnings() (news []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	var unfit error
	var turned uint64
	r.hold(func() { unfit, turned = r.noDoor, uint64(r.c.turned_away) })
	if unfit != nil && !r.news.said {
		r.news.said = true
		news = append(news, fmt.Sprintf("its listening sockets take connections from any address, and libfabric's tcp trusts those: "+
			"no filter could be set (%v); close its ports to strangers by a firewall (option data_port)", unfit))
	}
	if turned > r.news.turned && time.Since(r.news.turnedAt) > tellAgain {
		news = append(news, fmt.Sprintf("%d connections of peers were reset: the process has no file descriptor left for them: raise the limit with ulimit -n",
			turned-r.news.turned))
		r.news.turned, r.news.turnedAt = turned, time.Now()
	}
	return news
}
