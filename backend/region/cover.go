package region

import (
	"cmp"
	"slices"
	"sort"

	"gorail/backend/wire"
)

// Cover finds regions by what they cover. Registrations may overlap: each of them is memory of its own to the rails and to peers, with its
// own keys and its own end.
type Cover struct {
	list []*Region // by memory type, device and address
	far  []*Region // far[i]: which of list[:i+1] of that memory ends last
}

// NewCover makes a Cover of regions that are not sliced. It keeps no reference to the list.
func NewCover(list []*Region) *Cover {
	c := &Cover{list: slices.DeleteFunc(slices.Clone(list), func(g *Region) bool { return g.Len == 0 })}
	c.far = make([]*Region, len(c.list))
	slices.SortFunc(c.list, func(a, b *Region) int { return order(a.Range, b.Range) })
	for i, g := range c.list {
		if c.far[i] = g; i > 0 && same(c.far[i-1].Range, g.Range) && end(c.far[i-1].Range) > end(g.Range) {
			c.far[i] = c.far[i-1]
		}
	}
	return c
}

// At returns the region that has the byte at addr and ends last, of the memory type and device of a range; nil: none has it.
func (c *Cover) At(of wire.Range, addr uint64) *Region {
	if g := c.upTo(of, addr); g != nil && end(g.Range) > addr {
		return g
	}
	return nil
}

// Overlaps reports whether some region has a byte of a range.
func (c *Cover) Overlaps(r wire.Range) bool {
	if r.Len == 0 {
		return false
	}
	g := c.upTo(r, end(r)-1)
	return g != nil && end(g.Range) > r.Addr
}

// upTo returns the region that ends last of those that begin at addr or before; nil: there is none.
func (c *Cover) upTo(of wire.Range, addr uint64) *Region {
	of.Addr = addr
	i := sort.Search(len(c.list), func(i int) bool { return order(c.list[i].Range, of) > 0 }) - 1
	if i < 0 || !same(c.far[i].Range, of) {
		return nil
	}
	return c.far[i]
}

func same(a, b wire.Range) bool { return a.Mem == b.Mem && a.Dev == b.Dev }

func end(r wire.Range) uint64 { return r.Addr + r.Len }

func order(a, b wire.Range) int {
	return cmp.Or(cmp.Compare(a.Mem, b.Mem), cmp.Compare(a.Dev, b.Dev), cmp.Compare(a.Addr, b.Addr))
}

// Overlapping returns the local regions that share bytes with some of the list and that a rail has. None is sliced: their slices are
// there instead.
func (m *Registry) Overlapping(list []*Region) (out []*Region) {
	over := NewCover(list)
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := range m.each() {
		if r.Slices == nil && over.Overlaps(r.Range) && r.filled.Load() && r.Refused == nil && r.Core.Live() {
			out = append(out, r)
		}
	}
	return out
}
