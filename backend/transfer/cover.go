package transfer

import (
	"fmt"
	"slices"

	"gorail/backend/core"
	"gorail/backend/region"
)

// Registrations may overlap, and one may end while another of the same memory lives. NIXL's agent still chooses descriptors of the ended one:
// it forgets no range of a peer whose metadata is loaded again. So a transfer takes other registrations in place of those that are gone:
// each operation those that cover it, of the same memory type and device. At the peer it takes their keys, which the peer checks as any other.

// outdated reports that local memory of the transfer was deregistered since the last look. Under mu.
func (t *Transfer) outdated() bool {
	ended := t.tab.Regions.Regions.Ended.Load()
	if t.looked == ended {
		return false
	}
	if slices.ContainsFunc(t.Locals(), goneHere) {
		return true
	}
	t.looked = ended
	return false
}

func goneHere(g *region.Region) bool { return g.Closed.Load() }

// goneThere reports that the peer gives no keys of a region, as far as is known. Under Peer.mu.
func goneThere(g *region.Region) bool { return !g.Keyed && (g.Unknown || g.Closed.Load()) && !g.Asked }

// coveredHere reports that some local regions of the transfer are gone, and that others have all of their memory. Under mu and Peer.mu.
func (t *Transfer) coveredHere() bool {
	if t.inner != nil || t.freed() {
		return false
	}
	here := t.coverageHere()
	if len(here.gone) == 0 {
		return false
	}
	_, ok := count(t.Ops(), here, newCoverage(t.remotes, none))
	return ok
}

func none(*region.Region) bool { return false }

// coverage is the part of cover for one side of the transfer.
type coverage struct {
	list []*region.Region // of the transfer
	gone map[uint32]*region.Region
	by   *region.Cover             // what else may have their memory
	used map[uint32]*region.Region // what the operations use, by index
}

func newCoverage(list []*region.Region, gone func(*region.Region) bool) *coverage {
	c := &coverage{list: list, gone: map[uint32]*region.Region{}, used: map[uint32]*region.Region{}}
	for _, g := range list {
		if gone(g) {
			c.gone[region.Index(g.ID)] = g
		}
	}
	return c
}

// offer looks for regions in place of those that are gone.
func (c *coverage) offer(others func([]*region.Region) []*region.Region, usable func(*region.Region) bool) {
	var list []*region.Region
	for _, g := range c.gone {
		list = append(list, g)
	}
	c.by = region.NewCover(slices.DeleteFunc(others(list), func(g *region.Region) bool { return !usable(g) }))
}

// coverageHere is the coverage of our side.
func (t *Transfer) coverageHere() *coverage {
	c := newCoverage(t.Locals(), goneHere)
	if len(c.gone) > 0 {
		c.offer(t.tab.Regions.Overlapping, func(g *region.Region) bool { return !goneHere(g) })
	}
	return c
}

// take finds the region of an operation's first byte. It returns how many of n bytes are in it; 0: nothing covers the byte.
func (c *coverage) take(index *uint32, addr, n uint64) uint64 {
	old := c.gone[*index]
	if old == nil {
		return n
	}
	g := c.by.At(old.Range, addr)
	if g == nil {
		return 0
	}
	*index = region.Index(g.ID)
	c.used[*index] = g
	return min(n, g.Addr+g.Len-addr)
}

// regions are the regions that the transfer has from now on.
func (c *coverage) regions() []*region.Region {
	list := slices.DeleteFunc(slices.Clone(c.list), func(g *region.Region) bool { return c.gone[region.Index(g.ID)] != nil })
	for i, g := range c.used {
		if !slices.ContainsFunc(list, func(has *region.Region) bool { return region.Index(has.ID) == i }) {
			list = append(list, g)
		}
	}
	return list
}

// lacksKeys reports that we have no keys of a region: the peer has just taken them back. Under Peer.mu.
func lacksKeys(g *region.Region) bool { return !g.Keyed }

// cover replaces the regions of the transfer that are gone, at the peer by those whose keys are known, at each side if all of it is covered.
// True: it has replaced all that are gone, and some are. The core has nothing of the transfer. With the session's lock held, and t.mu or t
// queued, and Peer.mu.
func (t *Transfer) cover(gone func(*region.Region) bool) bool {
	if t.inner != nil || len(t.Ops()) == 0 {
		return false
	}
	here, all := t.coverageHere(), true
	if len(here.gone) > 0 {
		all = t.coverBy(here, newCoverage(t.remotes, none))
	}
	there := newCoverage(t.remotes, gone)
	if len(there.gone) > 0 {
		there.offer(t.peer.session.Overlapping, func(g *region.Region) bool { return g.Keyed && g.Access.Allow(t.needs()) })
		all = t.coverBy(newCoverage(t.Locals(), none), there) && all
	}
	return all && len(here.gone)+len(there.gone) > 0
}

// mayCover returns the regions of the peer that may get keys and share bytes with those that are gone. As cover.
func (t *Transfer) mayCover() (list []*region.Region) {
	if t.inner != nil {
		return nil
	}
	for _, g := range t.remotes {
		if goneThere(g) {
			list = append(list, g)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return slices.DeleteFunc(t.peer.session.Overlapping(list), func(g *region.Region) bool { return g.Keyed || g.Closed.Load() })
}

// willCover reports that cover may replace the peer's regions without keys when it has keys of others. As cover.
func (t *Transfer) willCover() bool {
	here, there := t.coverageHere(), newCoverage(t.remotes, lacksKeys)
	if t.inner != nil || len(t.Ops()) == 0 || len(there.gone) == 0 {
		return false
	}
	there.offer(t.peer.session.Overlapping, func(g *region.Region) bool {
		return there.gone[region.Index(g.ID)] == nil && !goneThere(g) && (!g.Keyed || g.Access.Allow(t.needs()))
	})
	_, ok := count(t.Ops(), here, there)
	return ok
}

// whole reports that nothing of the transfer is gone: it has been started over other registrations, or its own are back with new keys. As cover.
func (t *Transfer) whole() bool {
	return t.inner == nil && len(t.Ops()) > 0 && !t.lacks()
}

// coverBy rewrites the operations, if all of them are covered.
func (t *Transfer) coverBy(here, there *coverage) bool {
	n, ok := count(t.Ops(), here, there)
	if !ok {
		return false
	}
	locals, remotes := here.regions(), there.regions()
	fresh, ok := pinMore(t.tab, here, there)
	if !ok {
		return false
	}
	if !t.room(n, locals, remotes) {
		for _, g := range fresh {
			t.tab.Regions.Regions.Unpin(g)
		}
		return false
	}
	t.rewrite(n, here, there)
	t.here.Store(&locals)
	t.remotes = remotes
	for _, side := range []*coverage{here, there} {
		for _, g := range side.gone {
			t.tab.Log.Debug("operations use another registration of their memory, because theirs is gone", "peer", t.peer.Name,
				"addr", fmt.Sprintf("%#x", g.Addr), "len", g.Len, "here", side == here, "registrations", len(side.used))
			t.tab.Regions.Regions.Unpin(g)
		}
	}
	return true
}

// count returns how many operations the given ones become. False: not all of them are covered.
func count(ops []core.Op, here, there *coverage) (n int, ok bool) {
	for i := range ops {
		for o := ops[i]; o.Len > 0; n++ {
			if head := cutHead(&o, here, there); head.Len == 0 {
				return 0, false
			}
		}
	}
	return n, true
}

// cutHead cuts the part off an operation that is in one region at both sides. Len 0: none covers it.
func cutHead(o *core.Op, here, there *coverage) core.Op {
	head := *o
	head.Len = there.take(&head.RRegion, head.Remote, here.take(&head.LRegion, head.Local, head.Len))
	o.Local, o.Remote, o.Len = o.Local+head.Len, o.Remote+head.Len, o.Len-head.Len
	return head
}

// pinMore pins the regions that the transfer has not had before.
func pinMore(tab *Table, sides ...*coverage) (pinned []*region.Region, ok bool) {
	for _, c := range sides {
		for _, g := range c.used {
			if slices.Contains(c.list, g) {
				continue
			}
			if !g.Pin() {
				for _, p := range pinned {
					tab.Regions.Regions.Unpin(p)
				}
				return nil, false
			}
			pinned = append(pinned, g)
		}
	}
	return pinned, true
}

// room makes room for n operations, and tells the core the regions of a copy between GPUs. False: there is no memory, and nothing has changed.
func (t *Transfer) room(n int, locals, remotes []*region.Region) bool {
	rail, has := core.Heap, len(t.Ops())
	if t.bulk {
		if rail = t.copier(locals, remotes); rail == core.Heap {
			return false
		}
	}
	if n != has {
		if t.tab.Core.Resize(t.x, has, n, rail) != nil {
			return false
		}
		t.x.SetPlan(has, t.bytes)
	}
	return !t.bulk || t.x.Bulk(region.Indices(locals), region.Indices(remotes)) == nil
}

// rewrite writes the n operations that cutHead gives.
func (t *Transfer) rewrite(n int, here, there *coverage) {
	old := t.Ops()
	if n != len(old) {
		old = slices.Clone(old)
		t.x.SetPlan(n, t.bytes)
	}
	to, at := t.Ops(), 0
	for i := range old {
		for o := old[i]; o.Len > 0; at++ {
			to[at] = cutHead(&o, here, there)
		}
	}
}
