package engine

import "gorail/backend/region"

// Between memory of a GPU and of the host in one agent nothing needs a ring: the host's is pinned with the first transfer that wants it, and
// the GPU copies once.

// within moves a group of the session with ourselves.
func (s *stagedRun) within(g *group) error {
	e := s.t.e
	device := g.ldev
	if g.lmem != region.VRAM {
		device = g.rdev
	}
	if err := e.regions.Hold(s.t.locals); err != nil {
		return err
	}
	defer e.regions.Copied(s.t.locals)
	done := map[*region.Region]bool{}
	for i := range g.ops {
		host := s.regions[g.ops[i].LRegion]
		if g.lmem == region.VRAM {
			host = s.regions[g.ops[i].RRegion]
		}
		if done[host] {
			continue
		}
		done[host] = true
		if err := e.regions.Pin(host); err != nil {
			return err
		}
	}
	return s.copying(func() error { return e.stage.copier.Within(int(device), g.ops, s.t.op == opWrite, s.stop) })
}
