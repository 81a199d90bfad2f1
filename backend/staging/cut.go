package staging

import (
	"gorail/backend/plan"
	"gorail/backend/region"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// group holds operations of one class, with the regions that they name.
type group struct {
	transfer.Class
	ops []plan.Op
}

// groups sorts operations by class. It copies nothing if all are of one class.
func groups(ops []plan.Op, regions map[uint32]*region.Region) (list []*group) {
	at := map[transfer.Class]*group{}
	of := func(o *plan.Op) transfer.Class {
		l, r := regions[o.LRegion], regions[o.RRegion]
		return transfer.Class{LocalMem: l.Mem, RemoteMem: r.Mem, LocalDev: l.Dev, RemoteDev: r.Dev}
	}
	first, same := of(&ops[0]), true
	for i := 1; i < len(ops) && same; i++ {
		same = of(&ops[i]) == first
	}
	if same {
		return []*group{{first, ops}}
	}
	for i := range ops {
		c := of(&ops[i])
		g := at[c]
		if g == nil {
			g = &group{Class: c}
			at[c], list = g, append(list, g)
		}
		g.ops = append(g.ops, ops[i])
	}
	return list
}

// chunk is the part of a group that fits one slot.
type chunk struct {
	*group
	ops   []plan.Op
	bytes uint64
}

// cutter cuts a group into chunks. Limits of a chunk: slot bytes, and the pieces and regions that a frame can hold.
type cutter struct {
	g    *group
	slot uint64
	next int
	at   uint64 // bytes of ops[next] that are already in chunks
}

func (c *cutter) cut() (chunk, bool) {
	k := chunk{group: c.g}
	seen := map[uint32]struct{}{}
	for c.next < len(c.g.ops) && k.bytes < c.slot && len(k.ops) < wire.MaxPieces {
		o := c.g.ops[c.next]
		if _, ok := seen[o.RRegion]; !ok {
			if len(seen) == wire.MaxStageRegions {
				break
			}
			seen[o.RRegion] = struct{}{}
		}
		n := min(o.Len-c.at, c.slot-k.bytes)
		if n > 0 {
			k.ops = append(k.ops, plan.Op{Local: o.Local + c.at, Remote: o.Remote + c.at, Len: n, LRegion: o.LRegion, RRegion: o.RRegion})
		}
		k.bytes += n
		if c.at += n; c.at == o.Len {
			c.next, c.at = c.next+1, 0
		}
	}
	return k, k.bytes > 0
}
