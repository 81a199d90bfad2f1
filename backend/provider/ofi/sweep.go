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
// descriptor is looked at twice: without the rail's lock, for there may be many, and under it, where libfabric closes none.
func (r *rail) sweep() error {
	files, err := sockets.OpenFiles()
	if err != nil {
		return err
	}
	defer files.Close()
	shut := make(map[sockets.Name]bool)
	r.hold(func() {
		for own, e := range r.listening {
			if e.Unswept() {
				shut[own] = true
			}
		}
	})
	var candidates []int
	_ = files.Each(func(fd int) bool {
		if own, ok := sockets.Own(fd); ok && shut[own] {
			candidates = append(candidates, fd)
		}
		return len(candidates) < sweepMost
	})
	r.hold(func() {
		for _, fd := range candidates {
			own, _ := sockets.Own(fd)
			if e := r.listening[own]; e != nil {
				judge(e, fd)
			}
		}
		if len(candidates) == sweepMost {
			err = errMore
			return
		}
		for own := range shut {
			if e := r.listening[own]; e != nil {
				e.Swept()
			}
		}
	})
	return err
}

// judge breaks a connection over which fewer bytes have come than a connection request and a message have. Under hold.
func judge(e *libfabric.Endpoint, fd int) {
	const spoken = 64
	switch {
	case !e.Unswept() || fd == e.Listener():
	case sockets.BytesRead(fd) < spoken:
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	default:
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) // inherited from the listener
	}
}
