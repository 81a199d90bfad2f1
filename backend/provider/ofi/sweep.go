package ofi

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/provider/ofi/libfabric"
	"gorail/backend/provider/ofi/sockets"
)

const (
	sweepAfter = 50 * time.Millisecond // peers often connect many at a time
	sweepAgain = time.Second           // no descriptor was left to look with, or there is more to look at
	sweepMost  = 512                   // connections looked at in one sweep; the others have their turn in the next
)

var errMore = errors.New("there is more to look at")

// sweepSoon breaks connections of endpoints that admit nobody any more, all at once.
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

// sweep breaks connections of endpoints that were shut since the last time, but for the peers'. On an error it is to be done again. A
// descriptor is looked at twice: without a lock, for there may be many, and under the rail's, where libfabric closes none.
func (r *rail) sweep() error {
	files, err := sockets.OpenFiles()
	if err != nil {
		return err
	}
	defer files.Close()
	r.setup.Lock()
	shut := r.unswept()
	r.setup.Unlock()
	var candidates []int
	_ = files.Each(func(fd int) bool {
		if own, ok := sockets.Own(fd); ok && shut[own] {
			candidates = append(candidates, fd)
		}
		return len(candidates) < sweepMost
	})
	r.setup.Lock() // no endpoint opens or closes from here on
	defer r.setup.Unlock()
	still := r.unswept() // of those that have closed, another may have got the port
	for _, fd := range candidates {
		r.c.Hold(func() { // a few calls; the core has its turn in between
			own, _ := sockets.Own(fd)
			if still[own] {
				judge(r.listening[own], fd)
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

// unswept are the endpoints that were shut since the last sweep. Under setup.
func (r *rail) unswept() map[sockets.Name]bool {
	shut := make(map[sockets.Name]bool)
	for own, e := range r.listening {
		if e.Unswept() {
			shut[own] = true
		}
	}
	return shut
}

// judge breaks a connection over which fewer bytes have come than a connection request and a message have. Under hold.
func judge(e *libfabric.Endpoint, fd int) {
	const spoken = 64
	switch {
	case fd == e.Listener():
	case sockets.BytesRead(fd) < spoken:
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	default:
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) // inherited from the listener
	}
}
