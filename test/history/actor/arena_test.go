package actor

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/history"
)

// TestArena: what one process writes into a slot another one sees, in that slot alone.
func TestArena(t *testing.T) {
	const agents = 2
	f, err := NewArena("", agents)
	require.NoError(t, err)
	defer f.Close()
	var maps [2]*arena
	for i := range maps {
		maps[i], err = mapArena(ArenaPath(f), agents)
		require.NoError(t, err)
	}
	here, there := maps[0], maps[1]
	slots := func(m *arena) (all [][]byte) {
		for i := range m.regions {
			all = append(append(all, m.writes(i)...), m.reads(i)...)
		}
		return all
	}
	for i, b := range slots(here) {
		fill(b, uint64(i))
	}
	for i := range here.regions {
		here.generation(i).Store(uint64(i))
		for k := range sizes {
			here.latest(i, k).Store(pack(i, uint64(k)))
		}
	}
	require.Len(t, slots(there), agents*Groups*2*len(sizes))
	for i, b := range slots(there) {
		require.Len(t, b, sizes[i%len(sizes)])
		require.Zero(t, wrong(b, uint64(i)))
	}
	for i := range there.regions {
		require.EqualValues(t, i, there.generation(i).Load())
		for k := range sizes {
			life, op := unpack(there.latest(i, k).Load())
			require.Equal(t, i, life)
			require.EqualValues(t, k, op)
		}
		in := there.region(i)
		last := there.reads(i)[len(sizes)-1]
		require.LessOrEqual(t, uintptr(unsafe.Pointer(&last[len(last)-1])), uintptr(unsafe.Pointer(&in[len(in)-1])), "a region has its slots")
	}
	slots(here)[1][7]++
	require.EqualValues(t, 8, wrong(slots(there)[1], 1))
}

// TestSplit: the descriptors of a request are adjacent and cover the slot.
func TestSplit(t *testing.T) {
	for _, n := range []int{1, 3, 64} {
		all := split(nixlapi.Desc{Addr: 100, Len: 4099}, n)
		require.Len(t, all, n)
		at := uint64(100)
		for _, d := range all {
			require.Equal(t, at, d.Addr)
			at += d.Len
		}
		require.EqualValues(t, 100+4099, at)
	}
}

// TestSeeds: patterns differ by engine, call, slot and generation.
func TestSeeds(t *testing.T) {
	seen := map[uint64]bool{localCanary: true, remoteCanary: true}
	for _, agent := range []string{"alice", "bob"} {
		for life := range 3 {
			by := history.Engine{Agent: agent, Life: life}
			for n := range uint64(20) {
				seen[writeSeed(by, n)] = true
				for slot := range 3 {
					seen[readSeed(by, 1, slot, n)], seen[readSeed(by, 11, slot, n)] = true, true
				}
			}
		}
	}
	require.Len(t, seen, 2+2*3*20*7)
}
