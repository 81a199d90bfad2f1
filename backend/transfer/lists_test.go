package transfer

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gorail/backend/core"
	"gorail/backend/region"
	"gorail/backend/wire"
)

const (
	regionLen = 1 << 20
	sliceLen  = 64 << 10
)

// lists has regions of both sides, every third one in slices, and the metadata objects that descriptors point to.
type lists struct {
	*fixture
	regions [2][]*region.Region
	objects [2][]*[4]uint64
}

func newLists(t *testing.T, n int) *lists {
	w := &lists{fixture: newFixture(t)}
	add := func(side int, addr, length uint64) *region.Region {
		g := &region.Region{Claim: wire.Claim{Range: wire.Range{Addr: addr, Len: length}}, Slice: sliceLen}
		if side == 1 {
			g.Peer = w.peer
		}
		require.NoError(t, w.Regions.Regions.Add(g))
		t.Cleanup(func() {
			require.EqualValues(t, 1, g.Pins.Load(), "a transfer still pins it")
			w.Regions.Regions.Unpin(g)
		})
		return g
	}
	for side := range 2 {
		for i := range n {
			g := add(side, uint64(side*n+i+1)<<32+4096*uint64(i), regionLen)
			if i%3 == 2 {
				parts, err := g.Range.Slices(sliceLen)
				require.NoError(t, err)
				for _, p := range parts {
					g.Slices = append(g.Slices, add(side, p.Addr, p.Len))
				}
			}
			w.regions[side] = append(w.regions[side], g)
			w.objects[side] = append(w.objects[side], &[4]uint64{MDRegion / 8: g.ID})
		}
	}
	return w
}

// wrong is how a descriptor may be wrong.
var wrong = map[string]func(w *lists, l, r *Desc){
	"length":         func(_ *lists, l, r *Desc) { r.Len++ },
	"local unknown":  func(_ *lists, l, r *Desc) { l.MD = nil },
	"remote unknown": func(_ *lists, l, r *Desc) { r.MD = nil },
	"other side's":   func(w *lists, l, r *Desc) { r.MD = unsafe.Pointer(w.objects[0][0]) },
	"local before":   func(_ *lists, l, r *Desc) { l.Addr -= regionLen },
	"local behind":   func(_ *lists, l, r *Desc) { l.Addr += regionLen },
	"remote before":  func(_ *lists, l, r *Desc) { r.Addr -= regionLen },
	"remote behind":  func(_ *lists, l, r *Desc) { r.Addr += regionLen },
	"wraps":          func(_ *lists, l, r *Desc) { l.Len, r.Len = -l.Addr+1, -l.Addr+1 },
	"huge":           func(_ *lists, l, r *Desc) { l.Len, r.Len = 1<<64-1, 1<<64-1 },
}

// draw makes a list of runs: blocks at equal strides, touching or not, or at random places.
func (w *lists) draw(t *rapid.T) (local, remote []Desc) {
	for range rapid.IntRange(1, 8).Draw(t, "runs") {
		var g [2]*region.Region
		var o [2]unsafe.Pointer
		for side := range g {
			i := rapid.IntRange(0, len(w.regions[side])-1).Draw(t, "region")
			g[side], o[side] = w.regions[side][i], unsafe.Pointer(w.objects[side][i])
		}
		size := rapid.SampledFrom([]uint64{0, 1, 100, 4096, 40_000, 300_000}).Draw(t, "size")
		stride := size * rapid.Uint64Range(1, 2).Draw(t, "stride")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "places"), 1))
		scattered := rapid.Bool().Draw(t, "scattered")
		for i := range rapid.SampledFrom([]int{1, 2, 30, 300, 1000}).Draw(t, "blocks") {
			at := [2]uint64{uint64(i) * stride, uint64(i) * stride}
			if scattered || at[0]+size > regionLen {
				at = [2]uint64{random.Uint64N(regionLen - size + 1), random.Uint64N(regionLen - size + 1)}
			}
			local = append(local, Desc{Addr: g[0].Addr + at[0], Len: size, MD: o[0]})
			remote = append(remote, Desc{Addr: g[1].Addr + at[1], Len: size, MD: o[1]})
		}
	}
	return local, remote
}

// refusal is the error of a list, by the simplest means.
func (w *lists) refusal(local, remote []Desc) string {
	for i := range local {
		l, r := &local[i], &remote[i]
		if l.Len != r.Len {
			return fmt.Sprintf("descriptor %d: %d bytes here, %d at the peer", i, l.Len, r.Len)
		}
		lg, rg := w.Regions.Regions.Get(regionOf(l)), w.Regions.Regions.Get(regionOf(r))
		switch {
		case lg == nil || lg.Peer != nil:
			return fmt.Sprintf("descriptor %d: local memory %#x+%d is not registered", i, l.Addr, l.Len)
		case rg == nil:
			return fmt.Sprintf("descriptor %d: remote metadata is not loaded", i)
		case rg.Peer != w.peer:
			return fmt.Sprintf("descriptor %d: remote metadata is not of agent %q", i, "bob")
		case !lg.Contains(l.Addr, l.Len):
			return fmt.Sprintf("descriptor %d: local %#x+%d is not inside its region %#x+%d", i, l.Addr, l.Len, lg.Addr, lg.Len)
		case !rg.Contains(r.Addr, r.Len):
			return fmt.Sprintf("descriptor %d: remote %#x+%d is not inside its region %#x+%d", i, r.Addr, r.Len, rg.Addr, rg.Len)
		}
	}
	return ""
}

// part is the region of an address that the core knows, and the bytes from there to its end.
func part(g *region.Region, addr uint64) (uint32, uint64) {
	for _, p := range g.Slices {
		if addr >= p.Addr && addr-p.Addr < p.Len {
			return region.Index(p.ID), p.Addr + p.Len - addr
		}
	}
	return region.Index(g.ID), g.Addr + g.Len - addr
}

// merged is the plan of a list before large pieces are cut, by the simplest means.
func (w *lists) merged(local, remote []Desc) (ops []core.Op, bytes uint64) {
	for i := range local {
		l, r := local[i], remote[i]
		lg, rg := w.Regions.Regions.Get(regionOf(&l)), w.Regions.Regions.Get(regionOf(&r))
		for l.Len > 0 {
			p := core.Op{Local: l.Addr, Remote: r.Addr}
			var here, there uint64
			p.LRegion, here = part(lg, l.Addr)
			p.RRegion, there = part(rg, r.Addr)
			p.Len = min(l.Len, here, there)
			ops, bytes = join(ops, p), bytes+p.Len
			l.Addr, r.Addr, l.Len = l.Addr+p.Len, r.Addr+p.Len, l.Len-p.Len
		}
	}
	return ops, bytes
}

// join appends a piece, or merges it with the last one.
func join(ops []core.Op, p core.Op) []core.Op {
	if n := len(ops); n > 0 {
		o := &ops[n-1]
		if o.Local+o.Len == p.Local && o.Remote+o.Len == p.Remote && o.LRegion == p.LRegion && o.RRegion == p.RRegion {
			o.Len += p.Len
			return ops
		}
	}
	return append(ops, p)
}

// TestListsAsReference: plans and errors of random lists are those of the simplest code.
func TestListsAsReference(t *testing.T) {
	w := newLists(t, 7)
	rapid.Check(t, func(t *rapid.T) {
		local, remote := w.draw(t)
		names := slices.AppendSeq([]string{"", "", ""}, maps.Keys(wrong))
		slices.Sort(names)
		if bad := wrong[rapid.SampledFrom(names).Draw(t, "wrong")]; bad != nil {
			i := rapid.IntRange(0, len(local)-1).Draw(t, "where")
			bad(w, &local[i], &remote[i])
		}
		x, err := w.Prep(Write, List{Descs: local}, List{Descs: remote}, w.peer, nil)
		if why := w.refusal(local, remote); why != "" {
			require.ErrorContains(t, err, why)
			return
		}
		require.NoError(t, err)
		defer func() { require.NoError(t, x.Release()) }()
		want, bytes := w.merged(local, remote)
		require.Equal(t, bytes, x.Bytes())
		most := w.Options.ChunkMax
		var got []core.Op
		for _, o := range x.Ops() {
			require.NotZero(t, o.Len)
			require.LessOrEqual(t, o.Len, most)
			got = join(got, o)
		}
		require.Equal(t, len(want), len(got))
		for i := range want {
			require.Equal(t, want[i], got[i])
		}
		used := map[uint32]bool{}
		for _, o := range want {
			used[o.LRegion], used[o.RRegion] = true, true
		}
		for i := range used {
			require.True(t, pins(x, i), "region %d is not pinned", i)
		}
	})
}

// pins reports whether the transfer pins a region of that index.
func pins(x *Transfer, index uint32) bool {
	for _, list := range [][]*region.Region{x.Locals(), x.remotes} {
		for _, g := range list {
			if region.Index(g.ID) == index {
				return g.Pins.Load() == 2
			}
		}
	}
	return false
}
