package staging

import (
	"fmt"

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
func (s *Run) own(g *group) (list []*region.Region, err error) {
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
