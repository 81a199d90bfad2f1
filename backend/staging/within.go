package staging

import (
	"gorail/backend/region"
	"gorail/backend/transfer"
)

// A copy between GPU and host memory of the same agent needs no ring. The first such transfer pins the host memory, and the GPU
// copies once.

// within moves a group of a session with ourselves.
func (s *Run) within(g *group) error {
	device := g.LocalDev
	if g.LocalMem != region.VRAM {
		device = g.RemoteDev
	}
	return s.copying(func() error {
		if err := s.pin(g); err != nil {
			return err
		}
		return s.side.Copier.Within(int(device), g.ops, s.t.Op() == transfer.Write, g.LocalMem != region.VRAM, s.ends())
	})
}

// pin pins the host memory of a group.
func (s *Run) pin(g *group) error {
	done := map[*region.Region]bool{}
	for i := range g.ops {
		host := s.regions[g.ops[i].LRegion]
		if g.LocalMem == region.VRAM {
			host = s.regions[g.ops[i].RRegion]
		}
		if done[host] {
			continue
		}
		done[host] = true
		if err := s.side.Regions.Pin(host); err != nil {
			return err
		}
	}
	return nil
}
