package engine

import "fmt"

// Between memory of a GPU and of the host in one agent nothing needs a ring: the host's is pinned with the first transfer that wants it, and
// the GPU copies once.

// within moves a group of the session with ourselves.
func (s *stagedRun) within(g *group) error {
	e := s.t.e
	device := g.ldev
	if g.lmem != memVRAM {
		device = g.rdev
	}
	if err := e.hold(s.t.locals); err != nil {
		return err
	}
	defer e.copied(s.t.locals)
	done := map[*region]bool{}
	for i := range g.ops {
		host := s.regions[g.ops[i].LRegion]
		if g.lmem == memVRAM {
			host = s.regions[g.ops[i].RRegion]
		}
		if done[host] {
			continue
		}
		done[host] = true
		if err := e.pin(host); err != nil {
			return err
		}
	}
	return s.copying(func() error { return e.stage.copier.Within(int(device), g.ops, s.t.op == opWrite, s.stop) })
}

// pin pins a local region, or the one that a region of the session with ourselves is, for as long as it is registered.
func (e *Engine) pin(g *region) error {
	r := g
	if g.remote != nil {
		e.localMu.Lock()
		r = e.local[g.Range]
		e.localMu.Unlock()
		if r == nil {
			return fmt.Errorf("memory %#x+%d was deregistered", g.Addr, g.Len)
		}
	}
	r.pinMu.Lock()
	defer r.pinMu.Unlock()
	if !r.core.Live() {
		return fmt.Errorf("memory %#x+%d was deregistered", r.Addr, r.Len)
	}
	if !r.pinned && r.pinErr == nil {
		if r.pinErr = e.stage.copier.Pin(r.Addr, r.Len); r.pinErr == nil {
			r.pinned = true
		}
	}
	return r.pinErr
}

// unpinGPU ends it. Nothing uses the region any more.
func (e *Engine) unpinGPU(r *region) error {
	r.pinMu.Lock()
	defer r.pinMu.Unlock()
	if !r.pinned {
		return nil
	}
	r.pinned = false
	if err := e.stage.copier.Unpin(r.Addr, r.Len); err != nil {
		return fmt.Errorf("unpin for GPUs: %w", err)
	}
	return nil
}
