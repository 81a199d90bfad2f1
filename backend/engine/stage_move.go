package engine

import (
	"errors"
	"slices"
	"sync"
	"syscall"
	"time"

	"gorail/backend/gpu"
	"gorail/backend/plan"
	"gorail/backend/status"
)

// move moves every byte.
func (s *stagedRun) move() error {
	ops := plan.At(s.t.x.Ops())
	if len(ops) == 0 {
		return nil
	}
	all := groups(ops, s.regions)
	var rest []*group
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, g := range all { // several pairs of GPUs work side by side
		wg.Go(func() {
			if (s.tried == linksUntried || len(all) > 1) && s.reachable(g) {
				err := s.direct(g)
				if err == nil {
					return
				}
				if !errors.Is(err, errUnreachable) {
					s.fail(err)
					return
				}
			}
			if s.r.self && g.vram() && !g.gpus() {
				err := s.within(g)
				if err == nil {
					return
				}
				if !errors.Is(err, gpu.Cancelled) {
					s.t.e.log.Info("memory can't be copied in one piece", "between", g.names(), "err", err)
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
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// errUnreachable says that no link moves bytes between these memories.
var errUnreachable = errors.New("no link reaches both memories")

// reachable says whether links carry the group as it is, as far as is known.
func (s *stagedRun) reachable(g *group) bool {
	own, theirs := ^uint64(0), ^uint64(0)
	for i := range g.ops {
		l, r := s.regions[g.ops[i].LRegion], s.regions[g.ops[i].RRegion]
		own, theirs = own&l.Rails.Load(), theirs&r.Rails.Load()
	}
	reaches := func(l *link) bool {
		return l.up && own&(1<<l.rail.Index) != 0 && theirs&(1<<l.peer) != 0 && moves(l.rail, g.class, g.gpus() && l.rail.Can.Bulk)
	}
	s.r.mu.RLock()
	defer s.r.mu.RUnlock()
	return slices.ContainsFunc(s.r.links, reaches) && !(g.vram() && s.r.stranded(reaches))
}

// direct moves a group by one inner transfer.
func (s *stagedRun) direct(g *group) error {
	local, remote := make(descs, len(g.ops)), make(descs, len(g.ops))
	for i, o := range g.ops {
		local.set(i, s.regions[o.LRegion], o.Local, o.Len)
		remote.set(i, s.regions[o.RRegion], o.Remote, o.Len)
	}
	return s.transfer(local, remote)
}

// transfer makes an inner transfer and waits until it has ended: it has no memory in use then.
func (s *stagedRun) transfer(local, remote descs) error {
	t := &transfer{e: s.t.e, remote: s.r, op: s.t.op, inner: make(chan struct{}, 1)}
	v := &resolver{e: t.e, local: local, remote: remote, peer: s.r, held: true}
	if err := v.plan(t); err != nil {
		return err
	}
	t.x.Prove() // what follows goes over the control channel, or by another link
	handle := t.rec.Handle().Uint64()
	defer t.e.Release(handle)
	s.mu.Lock()
	err := s.err
	if err == nil { // under mu: whoever cancels finds it posted
		s.inner[t] = struct{}{}
		_, err = t.e.Post(handle, false, nil)
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.inner, t)
		s.mu.Unlock()
	}()
	if err != nil {
		return err
	}
	t.await()
	if _, errno := t.x.Err(); t.x.Failed() && (errno == syscall.ENOTSUP || t.unlinked.Load()) {
		return errUnreachable
	}
	if t.x.Failed() {
		t.mu.Lock()
		defer t.mu.Unlock()
		return status.Errorf(status.Code(t.x.Status()), "%s", t.why)
	}
	return nil
}

// await waits until an inner transfer has ended. Between processes of one host it copies meanwhile, as all who wait do, and small ones are
// worth a look. The core tells; of transfers that it never had nobody does.
func (t *transfer) await() {
	if t.bytes <= smallBytes {
		t.e.core.Wait(t.x, 100*time.Microsecond)
	}
	for t.hasHost() && !t.e.core.Wait(t.x, time.Millisecond) {
	}
	for {
		told := t.x.Want()
		if !told && !t.x.Running() && !t.x.Unsettled() {
			return
		}
		select {
		case <-t.inner:
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// hasHost says that a link of the transfer's copies memory, by threads.
func (t *transfer) hasHost() bool {
	t.remote.mu.RLock()
	defer t.remote.mu.RUnlock()
	return !t.bulk && slices.ContainsFunc(t.remote.links, func(l *link) bool { return l.rail.Device().Host })
}
