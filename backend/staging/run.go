package staging

import (
	"errors"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/gpu"
	"gorail/backend/region"
	"gorail/backend/transfer"
)

// run moves the bytes of one transfer.Run. It groups the operations by memory type. Inner transfers move the groups that links can carry.
// The rest goes in chunks over rings. A run has its own goroutines and ends the transfer.
type run struct {
	*transfer.Run
	side     *Side
	t        *transfer.Transfer
	requests *Requests // of the session in which the run began
	regions  map[uint32]*region.Region
	began    time.Time
}

// Stage makes a run; main does it. It is the transfer.Stage of the session.
func (a *Requests) Stage(r *transfer.Run) (main func()) {
	return (&run{Run: r, side: a.side, t: r.Transfer, requests: a, regions: r.Transfer.Regions(), began: time.Now()}).main
}

// copying runs f, a copy to or from local memory and the memory of also, unless the run has been cancelled. The memory is held meanwhile, and
// for good if the copy has not ended.
func (s *run) copying(also []*region.Region, f func() error) error {
	held := slices.Concat(s.t.Locals(), also)
	if err := s.side.Regions.Hold(held); err != nil {
		return err
	}
	if !s.BeginCopy() {
		s.side.Regions.Copied(held)
		return gpu.Cancelled
	}
	err := f()
	if errors.Is(err, ErrUnfinished) {
		return err
	}
	s.EndCopy()
	s.side.Regions.Copied(held)
	return err
}

// ends tells a copy when to end early.
func (s *run) ends() Ends { return Ends{Stop: s.Stop(), Abandon: s.side.Abandon} }

// fail cancels the run with an error. If the session has ended, the session's code replaces that of the error, unless the error
// is why it ended.
func (s *run) fail(err error) {
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
func (s *run) checkLive() error {
	for _, g := range s.regions {
		if !g.Core.Live() && !g.Anew.Load() { // the peer copies by addresses
			return errcode.LocalGone.Errorf("memory %#x+%d was deregistered", g.Addr, g.Len)
		}
	}
	return nil
}

// notify sends the notification after all bytes.
func (s *run) notify() error {
	for end := time.Now().Add(s.requests.timeout); ; {
		err := s.requests.session.Notify(s.Msg)
		if !errors.Is(err, core.ErrFull) || time.Now().After(end) {
			return err
		}
		select {
		case <-s.Stop():
			return errStopped
		case <-time.After(time.Millisecond):
		}
	}
}
