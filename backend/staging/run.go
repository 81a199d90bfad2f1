package staging

import (
	"errors"
	"fmt"
	"slices"
	"sync"
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

// move moves all bytes of the transfer.
func (s *run) move() error {
	ops := s.t.Ops()
	if len(ops) == 0 {
		return nil
	}
	all := groups(ops, s.regions)
	var rest []*group
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, g := range all { // pairs of GPUs work in parallel
		wg.Go(func() {
			for _, plain := range s.ways(g, len(all) > 1) {
				if (g.VRAM() || !plain) && !s.reachable(g, plain) { // host memory has no other way, and waits for a link
					continue
				}
				err := s.direct(g, plain)
				if err == nil && plain {
					s.logPlain(g)
				}
				if err == nil {
					return
				}
				if !errors.Is(err, transfer.ErrUnreachable) {
					s.fail(err)
					return
				}
			}
			if s.t.Peer().Self && g.VRAM() && !g.GPUs() {
				err := s.within(g)
				if err == nil {
					return
				}
				if !errors.Is(err, gpu.Cancelled) {
					s.side.Log.Info("direct copy between GPU and host memory failed; bounce buffers are used", "between", g.String(), "err", err)
				}
			}
			mu.Lock()
			rest = append(rest, g)
			mu.Unlock()
		})
	}
	wg.Wait()
	for _, g := range rest {
		if err := s.overRings(g); err != nil {
			s.fail(err)
		}
	}
	return s.Err()
}

// ways are those that are tried before bounce buffers: all links, then those that do not map the peer's memory. Links that were tried for the
// whole transfer are not tried again.
func (s *run) ways(g *group, several bool) (plain []bool) {
	if s.Tried == transfer.LinksUntried || several {
		plain = append(plain, false)
	}
	if g.GPUs() && s.t.Peer().MapsRings() || !g.GPUs() && s.t.Peer().Lends() {
		plain = append(plain, true)
	}
	return plain
}

// logPlain logs, once for each pair of memories of a session, that rails carry memory which another rail maps, but not here.
func (s *run) logPlain(g *group) {
	a, what := s.requests, g.String()
	a.mu.Lock()
	logged := a.logged["plain "+what]
	a.logged["plain "+what] = true
	a.mu.Unlock()
	if logged {
		return
	}
	why := s.t.LastError()
	if s.Tried == transfer.LinksOpening {
		why = "the peer's memory is still being mapped here"
	}
	a.session.Unmapped(why)
	s.side.Log.Info("transfers between GPUs go over the network's rails", "peer", s.t.Peer().Name, "between", what, "reason", why)
}

// reachable reports whether links carry the group directly, as far as is known.
func (s *run) reachable(g *group, plain bool) bool {
	own, theirs, bytes := ^uint64(0), ^uint64(0), uint64(0)
	for i := range g.ops {
		l, r := s.regions[g.ops[i].LRegion], s.regions[g.ops[i].RRegion]
		own, theirs, bytes = own&l.Rails.Load(), theirs&r.Rails.Load(), bytes+g.ops[i].Len
	}
	return s.t.Peer().Reachable(g.Class, bytes, own, theirs, plain)
}

// direct moves a group by one inner transfer.
func (s *run) direct(g *group, plain bool) error {
	local, remote := transfer.Own(len(g.ops)), transfer.Own(len(g.ops))
	for i, o := range g.ops {
		local.Set(i, s.regions[o.LRegion].ID, o.Local, o.Len)
		remote.Set(i, s.regions[o.RRegion].ID, o.Remote, o.Len)
	}
	return s.Move(local, remote, plain)
}

// main does the run.
func (s *run) main() {
	s.side.transfers.Add(1)
	err := s.checkLive()
	if err == nil {
		err = s.move()
	}
	said := false
	if err == nil && s.HasNotif {
		err = s.notify()
		said = !errors.Is(err, core.ErrFull) && !errors.Is(err, errStopped)
	}
	ran := transfer.Ran{Began: s.began, Done: err == nil, Said: said, Msg: s.Msg}
	if err != nil {
		s.fail(err)
	}
	if err = s.Err(); err == nil {
		s.side.bytes.Add(s.t.Bytes())
		s.side.took.Add(s.t.Bytes(), time.Since(s.began))
	}
	s.t.EndRun(ran, err)
}

// A copy between GPU and host memory of the same agent needs no ring. The first such transfer pins the host memory, and the GPU
// copies once.

// within moves a group of a session with ourselves.
func (s *run) within(g *group) error {
	device := g.LocalDev
	if g.LocalMem != region.VRAM {
		device = g.RemoteDev
	}
	own, err := s.own(g)
	if err != nil {
		return err
	}
	return s.copying(own, func() error {
		for _, r := range own {
			if r.Mem == region.VRAM {
				continue
			}
			if err := s.side.Regions.Pin(r); err != nil {
				return err
			}
		}
		return s.side.Copier.Within(int(device), g.ops, s.t.Op() == transfer.Write, g.LocalMem != region.VRAM, s.ends())
	})
}

// own are the registrations of the group's memory on both sides, each once. On the remote side the transfer has regions of the session.
func (s *run) own(g *group) (list []*region.Region, err error) {
	seen := map[*region.Region]bool{}
	for i := range g.ops {
		for _, r := range []*region.Region{s.regions[g.ops[i].LRegion], s.regions[g.ops[i].RRegion]} {
			if seen[r] {
				continue
			}
			seen[r] = true
			own := s.side.Regions.Own(r)
			if own == nil {
				return nil, fmt.Errorf("memory %#x+%d was deregistered", r.Addr, r.Len)
			}
			list = append(list, own)
		}
	}
	return list, nil
}
