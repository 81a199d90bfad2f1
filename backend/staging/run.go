package staging

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"gorail/backend/core"
	"gorail/backend/gpu"
	"gorail/backend/region"
	"gorail/backend/status"
	"gorail/backend/transfer"
)

// Run is one run of a transfer that no link carries as it is: its operations are sorted by what memory they go between; what links
// carry is posted as inner transfers, the rest goes in chunks over rings. It has goroutines of its own, and ends the transfer.
type Run struct {
	side     *Side
	t        *transfer.Transfer
	asked    *Requests // of the session that it began in
	regions  map[uint32]*region.Region
	tried    transfer.Tried
	hasNotif bool
	msg      []byte
	began    time.Time
	stop     chan struct{} // closed when it is to end early

	mu     sync.Mutex
	code   status.Code
	err    error // why it ends early
	inner  map[*transfer.Transfer]struct{}
	copies int // of our memory, under way
}

// Run makes a run that has not begun: see Main. msg is the run's to keep.
func (a *Requests) Run(t *transfer.Transfer, hasNotif bool, msg []byte, tried transfer.Tried) *Run {
	return &Run{side: a.side, t: t, asked: a, tried: tried, regions: t.Regions(), hasNotif: hasNotif, msg: msg, began: time.Now(), stop: make(chan struct{}),
		inner: map[*transfer.Transfer]struct{}{}}
}

// Cancel makes it end soon; the first reason counts. Implements transfer.Run.
func (s *Run) Cancel(code status.Code, err error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	if code >= 0 {
		code = status.ErrBackend
	}
	s.code, s.err = code, err
	close(s.stop)
	inner := slices.Collect(maps.Keys(s.inner))
	s.mu.Unlock()
	for _, t := range inner {
		t.Abort(code, err.Error())
	}
}

// Inner are the transfers that it is made of now. Implements transfer.Run.
func (s *Run) Inner() []*transfer.Transfer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.inner))
}

// Copying says that it has not been cancelled, or that memory of ours is being copied. Implements transfer.Run.
func (s *Run) Copying() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err == nil || s.copies > 0
}

// copying makes a copy to or from memory of ours, unless the run is to end.
func (s *Run) copying(f func() error) error {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return gpu.Cancelled
	}
	s.copies++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.copies--
		s.mu.Unlock()
	}()
	return f()
}

// fail is Cancel for what went wrong on the way; a session that has ended says itself what that means.
func (s *Run) fail(err error) {
	code := status.Of(err)
	if c, over := s.t.Peer().Ended(); over {
		code = c
	}
	s.Cancel(code, err)
}

// live says whether all of the memory is registered. Whoever deregisters some says so first, and then looks for transfers in progress, which
// this one is already.
func (s *Run) live() error {
	for _, g := range s.regions {
		if !g.Core.Live() {
			return status.Errorf(status.ErrBackend, "memory %#x+%d was deregistered", g.Addr, g.Len)
		}
	}
	return nil
}

// notify sends the notification, behind all bytes.
func (s *Run) notify() error {
	for end := time.Now().Add(s.asked.timeout); ; {
		err := s.asked.session.Notify(s.msg)
		if !errors.Is(err, core.ErrFull) || time.Now().After(end) {
			return err
		}
		select {
		case <-s.stop:
			return errStopped
		case <-time.After(time.Millisecond):
		}
	}
}
