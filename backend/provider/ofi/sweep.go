package ofi

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/provider/ofi/libfabric"
	"gorail/backend/provider/ofi/sockets"
)

const (
	sweepAfter = 50 * time.Millisecond // many peers often connect at once
	sweepAgain = time.Second           // no descriptor was left for the sweep, or connections remain
	sweepMost  = 512                   // connections checked in one sweep; the next sweep checks the others
)

var errMore = errors.New("more connections remain to be checked")

// sweepSoon schedules one sweep for all endpoints whose filter has closed.
func (r *rail) sweepSoon(after time.Duration) {
	if !r.sweeping.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(after, func() {
		r.sweeping.Store(false)
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.closed && r.sweep() != nil {
			r.sweepSoon(sweepAgain)
		}
	})
}

// sweep breaks the connections of endpoints that were shut since the last sweep, except those of the peers, and keeps
// those of the peers from children. After an error the sweep must be repeated. Descriptors are checked twice: first
// without a lock, since there may be many, then under the rail's lock, where libfabric closes none.
func (r *rail) sweep() error {
	files, err := sockets.OpenFiles()
	if err != nil {
		return err
	}
	defer files.Close()
	r.setup.Lock()
	shut, dialled := r.unswept(), r.dialled()
	r.setup.Unlock()
	var candidates []int
	_ = files.Each(func(fd int) bool {
		own, ok := sockets.Own(fd)
		if ok && (shut[own] || dialled(own, fd) && sockets.Inherited(fd)) {
			candidates = append(candidates, fd)
		}
		return len(candidates) < sweepMost
	})
	r.setup.Lock() // no endpoint opens or closes from here on
	defer r.setup.Unlock()
	still, dialled := r.unswept(), r.dialled() // another endpoint may have got the port of a closed one
	for _, fd := range candidates {
		r.c.Hold(func() { // a few system calls; the core may run in between
			own, _ := sockets.Own(fd)
			if still[own] {
				breakIfSilent(r.listening[own], fd)
			}
			if still[own] || dialled(own, fd) {
				sockets.KeepFromChildren(fd)
			}
		})
	}
	if len(candidates) == sweepMost {
		return errMore
	}
	for own := range shut {
		if e := r.listening[own]; e != nil {
			e.Swept()
		}
	}
	return nil
}

// dialled returns a test for connections that libfabric made: from this rail's address to a peer's endpoint. Under
// setup; the test itself needs no lock.
func (r *rail) dialled() func(own sockets.Name, fd int) bool {
	hosts, peers := make(map[sockets.Name]bool), make(map[sockets.Name]bool)
	for own := range r.listening {
		hosts[own.Host()] = true
	}
	for _, p := range r.peers.byAddr {
		if name, ok := sockets.NameOf(p.addr); ok {
			peers[name] = true
		}
	}
	return func(own sockets.Name, fd int) bool {
		if !hosts[own.Host()] {
			return false
		}
		peer, ok := sockets.Peer(fd)
		return ok && peers[peer]
	}
}

// unswept returns the endpoints that were shut since the last sweep. Under setup.
func (r *rail) unswept() map[sockets.Name]bool {
	shut := make(map[sockets.Name]bool)
	for own, e := range r.listening {
		if e.Unswept() {
			shut[own] = true
		}
	}
	return shut
}

// breakIfSilent breaks a connection that has carried fewer bytes than a connection request and a message. Under hold.
func breakIfSilent(e *libfabric.Endpoint, fd int) {
	const spoken = 64
	switch {
	case fd == e.Listener():
	case sockets.BytesRead(fd) < spoken:
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	default:
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) // inherited from the listener
	}
}
