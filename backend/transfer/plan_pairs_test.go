package transfer

import "gorail/backend/core"

import (
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// objects stand for metadata objects: memory of some regions of both sides.
var objects [8][6]uint64

// side is a side of the pairs of a test: region i is at 1<<40*i, and its windows are known up to a number. It may have a second slice,
// that Around knows.
type side struct {
	windowCache
	regions int
}

const pairRegionLen = 1 << 12

func (s *side) window(i, slice int) core.Window {
	return core.Window{MD: unsafe.Pointer(&objects[i]), Addr: uint64(i)<<40 + pairRegionLen*uint64(slice), Size: pairRegionLen, Index: uint32(2*i + slice)}
}

// around is a windowFinder.
func (s *side) around(md unsafe.Pointer, addr uint64) core.Window {
	i, at := int(addr>>40), addr%(1<<40)
	if i >= s.regions || md != unsafe.Pointer(&objects[i]) || at >= 2*pairRegionLen {
		return core.Window{}
	}
	return s.window(i, int(at/pairRegionLen))
}

// of returns the window of a descriptor.
func (s *side) of(d *core.Desc) (core.Window, bool) {
	w := s.window(int(d.Addr>>40), 0)
	if s.Around != nil {
		w = s.around(d.MD, d.Addr)
	}
	return w, int(d.Addr>>40) < s.regions && inside(&w, d)
}

func drawSide(t *rapid.T, name string) *side {
	s := &side{regions: rapid.IntRange(1, len(objects)).Draw(t, name)}
	if s.regions > 1 {
		s.Several()
	}
	for i := range s.regions {
		s.Keep(s.window(i, 0))
	}
	if rapid.Bool().Draw(t, "slices") {
		s.Around = s.around
	}
	return s
}

// drawPairs draws pairs in runs: most touch the one before, or have its distance to it. Some are not inside their window, or have
// different lengths, or a metadata object that is not known.
func drawPairs(t *rapid.T, l, r *side) (local, remote []core.Desc) {
	at := func(s *side) core.Desc {
		i := rapid.IntRange(0, min(s.regions, len(objects)-1)).Draw(t, "region") // one more than are known
		return core.Desc{Addr: uint64(i)<<40 + rapid.Uint64Range(0, pairRegionLen).Draw(t, "offset"), MD: unsafe.Pointer(&objects[i])}
	}
	for range rapid.IntRange(0, 12).Draw(t, "runs") {
		a, b := at(l), at(r)
		a.Len = rapid.SampledFrom([]uint64{0, 1, 64, 64, 64, pairRegionLen + 1}).Draw(t, "length")
		b.Len = a.Len + rapid.SampledFrom([]uint64{0, 0, 0, 0, 0, 1}).Draw(t, "longer")
		gap, far := rapid.Uint64Range(0, 1).Draw(t, "gap")*64, rapid.Uint64Range(0, 1).Draw(t, "gap")*8
		for range rapid.IntRange(1, 20).Draw(t, "pairs") {
			local, remote = append(local, a), append(remote, b)
			a.Addr, b.Addr = a.Addr+a.Len+gap, b.Addr+b.Len+far
		}
	}
	return local, remote
}

// Pairs takes exactly the pairs inside known windows that there is room for, and adds what Add would.
func TestPairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, r := drawSide(t, "local regions"), drawSide(t, "remote regions")
		local, remote := drawPairs(t, l, r)
		room := rapid.IntRange(0, len(local)+1).Draw(t, "room")
		w, want := &planWriter{Plan: core.Plan{Ops: make([]core.Op, room)}}, &planWriter{Plan: core.Plan{Ops: make([]core.Op, len(local))}}
		i := 0
		for i < len(local) {
			n := w.Pairs(local[i:], remote[i:], &l.windowCache, &r.windowCache)
			for k := i; k < i+n; k++ {
				a, here := l.of(&local[k])
				b, there := r.of(&remote[k])
				require.True(t, here && there && local[k].Len == remote[k].Len)
				require.NoError(t, want.Add(op(local[k].Addr, remote[k].Addr, local[k].Len, a.Index, b.Index)))
			}
			if i += n; i == len(local) {
				break
			}
			_, here := l.of(&local[i])
			_, there := r.of(&remote[i])
			if here && there && local[i].Len == remote[i].Len {
				require.True(t, w.Full(), "pair %d is in its windows", i)
				break
			}
			i++ // the caller takes such a pair
			w.taken++
			want.taken++
		}
		require.Equal(t, want.Ops[:want.Len], w.Ops[:w.Len])
		require.Equal(t, []uint64{want.Bytes, want.Longest}, []uint64{w.Bytes, w.Longest})
		require.Equal(t, want.taken, w.taken)
	})
}

// A total of 2^63 bytes is Add's to refuse.
func TestPairsTooLong(t *testing.T) {
	for _, size := range []uint64{1 << 60, 1 << 62, 1<<63 - 1, 1<<64 - 1} {
		whole := core.Window{MD: unsafe.Pointer(&objects[0]), Size: size}
		s := windowCache{Last: whole}
		var d []core.Desc
		for range 9 {
			d = append(d, core.Desc{Len: min(size, 1<<60), MD: whole.MD})
		}
		w := &planWriter{Plan: core.Plan{Ops: make([]core.Op, len(d))}}
		n := w.Pairs(d, d, &s, &s)
		require.Less(t, w.Bytes, uint64(1)<<63)
		var err error
		for ; n < len(d) && err == nil; n++ {
			err = w.Add(core.Op{Len: d[n].Len})
		}
		require.ErrorIs(t, err, errTooLong)
		require.Equal(t, 8, n, "the eighth has the byte that is too much")
	}
}

// inGo is a ManyPairs.
func inGo(p *core.Plan, local, remote []core.Desc, l, r core.Window) int {
	w := planWriter{Plan: *p}
	n := w.among(local, remote, &windowCache{Last: l}, &windowCache{Last: r})
	*p = w.Plan
	return n
}

// drawWriter draws a plan that may have begun. Its copy has memory of its own.
func drawWriter(t *rapid.T, local, remote []core.Desc) (w, same *planWriter) {
	room := len(local)
	if rapid.IntRange(0, 3).Draw(t, "short of room") == 0 {
		room = rapid.IntRange(0, room).Draw(t, "room")
	}
	w, same = &planWriter{Plan: core.Plan{Ops: make([]core.Op, room)}}, &planWriter{Plan: core.Plan{Ops: make([]core.Op, room)}}
	if rapid.Bool().Draw(t, "many") {
		w.Many, same.Many = inGo, inGo
	}
	if room > 0 && rapid.Bool().Draw(t, "begun") { // the first pair may touch it
		first := op(local[0].Addr-64, remote[0].Addr-64, 64, uint32(local[0].Addr>>40*2), uint32(remote[0].Addr>>40*2))
		if local[0].Addr%(1<<40) > 64 && remote[0].Addr%(1<<40) > 64 {
			if w.Add(first) != nil || same.Add(first) != nil {
				t.Fatal("no room")
			}
		}
	}
	return w, same
}

// Several threads take the pairs that one takes, and leave the same plan: sections that touch, empty pairs, several regions, a pair that
// ends the call, too little room, few and many threads. After the call the lists are the caller's.
func TestPairsShared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, r := drawSide(t, "local regions"), drawSide(t, "remote regions")
		local, remote := drawPairs(t, l, r)
		w, want := drawWriter(t, local, remote)
		w.Threads, w.size = rapid.IntRange(2, 8).Draw(t, "threads"), rapid.SampledFrom([]int{1, 2, 3, 5, 8, many}).Draw(t, "section")
		for i := 0; i < len(local); i++ { // the caller takes the pair that ends a call
			n := w.Pairs(local[i:], remote[i:], &l.windowCache, &r.windowCache)
			require.Equal(t, want.Pairs(local[i:], remote[i:], &l.windowCache, &r.windowCache), n)
			for k := i; k < i+n; k++ { // a thread that still read them would be a data race
				local[k], remote[k] = core.Desc{}, core.Desc{}
			}
			require.Equal(t, want.Ops[:want.Len], w.Ops[:w.Len])
			require.Equal(t, []uint64{want.Bytes, want.Longest}, []uint64{w.Bytes, w.Longest})
			require.Equal(t, want.taken, w.taken)
			i += n
		}
	})
}

// apart returns n pairs of one region that do not touch, except each third with the pair before.
func apart(n int) (d []core.Desc, s windowCache) {
	s.Keep(core.Window{MD: unsafe.Pointer(&objects[0]), Size: 1 << 40})
	for i := range uint64(n) {
		d = append(d, core.Desc{Addr: 128*i - 64*(i%3/2), Len: 64, MD: s.Last.MD})
	}
	return d, s
}

// A thread that is late with its section holds up no other section: the other threads write all of them meanwhile. Then the plan is
// complete. If the late section has a pair that ends the call, the plan ends there.
func TestPairsLateSection(t *testing.T) {
	const size, n = many, 12
	for late := 1; late < n; late++ { // one thread takes section 0 alone
		for _, end := range []int{size * n, late*size + size/2} {
			local, s := apart(size * n)
			remote := slices.Clone(local)
			if end < len(local) {
				remote[end].Len++
			}
			want := &planWriter{Plan: core.Plan{Ops: make([]core.Op, len(local))}}
			require.Equal(t, end, want.Pairs(local, remote, &s, &s))
			var written atomic.Int32
			others := make(chan struct{})
			w := &planWriter{Plan: core.Plan{Ops: make([]core.Op, len(local))}, Threads: 3, size: size}
			w.Many = func(w *core.Plan, l, r []core.Desc, lw, rw core.Window) int {
				if &l[0] == &local[late*size] {
					<-others
				} else if written.Add(1) == n-1 {
					defer close(others)
				}
				return inGo(w, l, r, lw, rw)
			}
			require.Equal(t, end, w.Pairs(local, remote, &s, &s))
			require.Equal(t, want.Ops[:want.Len], w.Ops[:w.Len], "section %d", late)
			require.Equal(t, []uint64{want.Bytes, want.Longest}, []uint64{w.Bytes, w.Longest})
		}
	}
}

// A helper that starts late finds no section. It has no list, since that is the caller's again.
func TestPairsLateHelper(t *testing.T) {
	d, s := apart(64)
	w := &planWriter{Plan: core.Plan{Ops: make([]core.Op, len(d))}, Threads: 2, few: many, size: 4}
	x := w.share(d, d, &s, &s)
	x.work()
	require.Equal(t, len(d), x.end(w))
	require.Zero(t, [2][]core.Desc{x.local, x.remote})
	require.Zero(t, [2]windowCache{x.ls, x.rs})
	require.Empty(t, x.out.Ops)
	require.Empty(t, x.parts)
	x.work()
}
