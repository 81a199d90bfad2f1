package staging

import (
	"errors"
	"sync"
	"time"

	"gorail/backend/core"
	"gorail/backend/gpu"
	"gorail/backend/transfer"
)

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
			if (s.Tried == transfer.LinksUntried || len(all) > 1) && s.reachable(g) {
				err := s.direct(g)
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

// reachable reports whether links carry the group directly, as far as is known.
func (s *run) reachable(g *group) bool {
	own, theirs, bytes := ^uint64(0), ^uint64(0), uint64(0)
	for i := range g.ops {
		l, r := s.regions[g.ops[i].LRegion], s.regions[g.ops[i].RRegion]
		own, theirs, bytes = own&l.Rails.Load(), theirs&r.Rails.Load(), bytes+g.ops[i].Len
	}
	return s.t.Peer().Reachable(g.Class, bytes, own, theirs)
}

// direct moves a group by one inner transfer.
func (s *run) direct(g *group) error {
	local, remote := transfer.Own(len(g.ops)), transfer.Own(len(g.ops))
	for i, o := range g.ops {
		local.Set(i, s.regions[o.LRegion].ID, o.Local, o.Len)
		remote.Set(i, s.regions[o.RRegion].ID, o.Remote, o.Len)
	}
	return s.Move(local, remote)
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
