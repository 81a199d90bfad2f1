package transfer

import (
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
)

// The plan of C is that of Go: for lists of runs that touch, repeat, or leave their window, for plans that have begun, and for any room.
func TestPairsOfC(t *testing.T) {
	const size = 1 << 20
	var objects [2][6]uint64
	memory := [2][]core.Op{make([]core.Op, 2000), make([]core.Op, 2000)}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 3))
		side := func() (s windowCache) {
			s.Keep(core.Window{MD: unsafe.Pointer(&objects[0]), Addr: 1 << 40, Size: size, Index: uint32(r.IntN(2))})
			return s
		}
		here, there := side(), side()
		local, remote := randomPairs(r, unsafe.Pointer(&objects[0]), unsafe.Pointer(&objects[1]), size)
		room := len(local)
		if r.IntN(3) == 0 {
			room = r.IntN(room)
		}
		c, want := &planWriter{Plan: core.Plan{Ops: memory[0][:room]}, Many: core.Pairs}, &planWriter{Plan: core.Plan{Ops: memory[1][:room]}}
		if room > 0 && r.IntN(2) == 0 { // the first pair may touch it
			first := core.Op{Local: local[0].Addr - 64, Remote: remote[0].Addr - 64, Len: 64, LRegion: uint32(r.IntN(2))}
			require.NoError(t, c.Add(first))
			require.NoError(t, want.Add(first))
		}
		require.Equal(t, want.Pairs(local, remote, &here, &there), c.Pairs(local, remote, &here, &there), "seed %d", seed)
		require.Equal(t, want.Ops[:want.Len], c.Ops[:c.Len], "seed %d", seed)
		require.Equal(t, []uint64{want.Bytes, want.Longest}, []uint64{c.Bytes, c.Longest}, "seed %d", seed)
	}
}

// Several threads make the plan that one makes of a long list, with runs of pairs in C and others in Go.
func TestSharedPairsOfC(t *testing.T) {
	const size = 1 << 20
	var objects [3][6]uint64
	md := func(i int) unsafe.Pointer { return unsafe.Pointer(&objects[i]) }
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 4))
		var side windowCache
		side.Several()
		for i := range 2 {
			side.Keep(core.Window{MD: md(i), Addr: 1 << 40, Size: size, Index: uint32(i)})
		}
		local, remote := shortRuns(r, md(0), md(1), size, 3*LongList)
		if seed%2 == 0 { // ends there
			remote[r.IntN(len(remote))].MD = md(2)
		}
		shared := &planWriter{Plan: core.Plan{Ops: make([]core.Op, len(local))}, Many: core.Pairs, Threads: 2 + int(seed)%4}
		want := &planWriter{Plan: core.Plan{Ops: make([]core.Op, len(local))}, Many: core.Pairs}
		require.Equal(t, want.Pairs(local, remote, &side, &side), shared.Pairs(local, remote, &side, &side), "seed %d", seed)
		require.True(t, slices.Equal(want.Ops[:want.Len], shared.Ops[:shared.Len]), "seed %d", seed)
		require.Equal(t, []uint64{want.Bytes, want.Longest}, []uint64{shared.Bytes, shared.Longest}, "seed %d", seed)
	}
}

// shortRuns draws n pairs or more of two windows in runs of many lengths. In half of the runs each pair touches the one before.
func shortRuns(r *rand.Rand, md, other unsafe.Pointer, size uint64, n int) (local, remote []core.Desc) {
	for len(local) < n {
		a := core.Desc{Addr: 1<<40 + r.Uint64N(size/2), Len: 64 * r.Uint64N(2), MD: []unsafe.Pointer{md, other}[r.IntN(2)]}
		b := a
		b.Addr = 1<<40 + r.Uint64N(size/2)
		gap := uint64(r.IntN(2) * 8)
		for range 1 + r.IntN(1<<r.IntN(13)) {
			local, remote = append(local, a), append(remote, b)
			a.Addr, b.Addr = a.Addr+a.Len+gap, b.Addr+a.Len+gap
		}
	}
	return local, remote
}

// randomPairs draws pairs of a window of md. Now and then one is outside it, of other, or longer at one side.
func randomPairs(r *rand.Rand, md, other unsafe.Pointer, size uint64) (local, remote []core.Desc) {
	for range 1 + r.IntN(12) {
		length := []uint64{0, 1, 64, 64, 4096}[r.IntN(5)]
		a := core.Desc{Addr: 1<<40 + r.Uint64N(size), Len: length, MD: md}
		b := core.Desc{Addr: 1<<40 + r.Uint64N(size), Len: length, MD: md}
		gap, far := uint64(r.IntN(2)*64), uint64(r.IntN(2)*8)
		for range 1 + r.IntN(100) {
			if r.IntN(500) == 0 {
				a.MD = other
			} else if r.IntN(500) == 0 {
				b.Len++
			}
			local, remote = append(local, a), append(remote, b)
			a.Addr, b.Addr = a.Addr+length+gap, b.Addr+length+far
		}
	}
	return local, remote
}
