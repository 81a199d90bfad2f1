package staging

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/gpu"
	"gorail/backend/region"
	"gorail/backend/transfer"
)

// Run is one run of a transfer that no link carries directly. It groups the operations by memory type. Inner transfers move the
// groups that links can carry. The rest goes in chunks over rings. A run has its own goroutines and ends the transfer.
type Run struct {
	side     *Side
	t        *transfer.Transfer
	requests *Requests // of the session in which the run began
	regions  map[uint32]*region.Region
	tried    transfer.Tried
	hasNotif bool
	msg      []byte
	began    time.Time
	stop     chan struct{} // closed to end the run early

	mu     sync.Mutex
	err    error // why the run ends early
	inner  map[*transfer.Transfer]struct{}
	copies int // copies of local memory in progress
}

// Run makes a run; Main starts it. The run owns msg.
func (a *Requests) Run(t *transfer.Transfer, hasNotif bool, msg []byte, tried transfer.Tried) *Run {
	return &Run{side: a.side, t: t, requests: a, tried: tried, regions: t.Regions(), hasNotif: hasNotif, msg: msg, began: time.Now(), stop: make(chan struct{}),
		inner: map[*transfer.Transfer]struct{}{}}
}

// Cancel makes the run end soon. The first reason counts. Implements transfer.Run.
func (s *Run) Cancel(err error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = err
	close(s.stop)
	inner := slices.Collect(maps.Keys(s.inner))
	s.mu.Unlock()
	for _, t := range inner {
		t.Abort(err)
	}
}

// Inner returns the current inner transfers of the run. Implements transfer.Run.
func (s *Run) Inner() []*transfer.Transfer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.inner))
}

// Copying reports that the run was not cancelled, or that a copy of local memory is in progress. Implements transfer.Run.
func (s *Run) Copying() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err == nil || s.copies > 0
}

// copying runs f, a copy to or from local memory and the memory of also, unless the run has been cancelled. The memory is held meanwhile, and
// for good if the copy has not ended.
func (s *Run) copying(also []*region.Region, f func() error) error {
	held := slices.Concat(s.t.Locals(), also)
	if err := s.side.Regions.Hold(held); err != nil {
		return err
	}
	s.mu.Lock()
	err := s.err
	if err == nil {
		s.copies++
	}
	s.mu.Unlock()
	if err != nil {
		s.side.Regions.Copied(held)
		return gpu.Cancelled
	}
	if err = f(); errors.Is(err, ErrUnfinished) {
		return err
	}
	s.mu.Lock()
	s.copies--
	s.mu.Unlock()
	s.side.Regions.Copied(held)
	return err
}

// ends tells a copy when to end early.
func (s *Run) ends() Ends { return Ends{Stop: s.stop, Abandon: s.side.Abandon} }

// fail cancels the run with an error. If the session has ended, the session's code replaces that of the error, unless the error
// is why it ended.
func (s *Run) fail(err error) {
	switch c, over := s.t.Peer().Ended(); {
	case errors.Is(err, errGaveUp):
	case over:
		err = c.Errorf("%w", err)
	case gpu.Is(err, gpu.Unmapped):
		err = errcode.MemoryUnmapped.Errorf("%w", err)
	case errcode.Of(err) == errcode.Unclassified:
		err = errcode.StagingFailed.Errorf("%w", err)
	}
	s.Cancel(err)
}

// checkLive checks that all of the memory is registered. A deregistration first marks the memory, then looks for transfers in
// progress. This transfer is already one of them.
func (s *Run) checkLive() error {
	for _, g := range s.regions {
		if !g.Core.Live() && !g.Anew.Load() { // the peer copies by addresses
			return errcode.LocalGone.Errorf("memory %#x+%d was deregistered", g.Addr, g.Len)
		}
	}
	return nil
}

// notify sends the notification after all bytes.
func (s *Run) notify() error {
	for end := time.Now().Add(s.requests.timeout); ; {
		err := s.requests.session.Notify(s.msg)
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
