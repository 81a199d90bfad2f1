package mover

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/held"
)

// TestBoard: what one process writes on a board another one sees, in that word alone.
func TestBoard(t *testing.T) {
	f, err := NewBoard()
	require.NoError(t, err)
	defer f.Close()
	var boards [2]*Board
	for i := range boards {
		boards[i], err = OpenBoard(BoardPath(f))
		require.NoError(t, err)
		defer boards[i].Close()
	}
	here, there := boards[0], boards[1]
	n := uint64(0)
	words := func(b *Board, f func(get uint64, set func(uint64))) {
		for p := range kinds {
			f(b.generation(p).Load(), b.generation(p).Store)
			f(b.closing(p).Load(), b.closing(p).Store)
			for i := range mostAgents {
				for w := range wordsOfBox {
					f(b.box(p, i, w).Load(), b.box(p, i, w).Store)
				}
			}
		}
	}
	words(here, func(_ uint64, set func(uint64)) { n++; set(n) })
	here.setFiles(1, []uint64{7, 8})
	here.setFiles(4, []uint64{9})
	seen := uint64(0)
	words(there, func(get uint64, _ func(uint64)) { seen++; require.Equal(t, seen, get) })
	require.Equal(t, n, seen)
	require.Equal(t, []uint64{7, 8, 9}, there.Files())
	require.True(t, there.busy(2))
	words(here, func(_ uint64, set func(uint64)) { set(0) })
	require.False(t, there.busy(2))
	life, op := unpack(pack(3, 5))
	require.Equal(t, 3, life)
	require.EqualValues(t, 5, op)
}

// TestSlots: the half for READs and the slots of all initiators are apart.
func TestSlots(t *testing.T) {
	const size = 4 << 20
	end := uint64(size / 2)
	for i := range 3 {
		off, n := slot(size, i, 3)
		require.GreaterOrEqual(t, off, end)
		require.GreaterOrEqual(t, n, uint64(room))
		end = off + n
	}
	require.LessOrEqual(t, end, uint64(size))
	all := split(nixlapi.Desc{Addr: 100, Len: 4099, Dev: 1}, 64)
	require.Len(t, all, 64)
	at := uint64(100)
	for _, d := range all {
		require.Equal(t, at, d.Addr)
		at += d.Len
	}
	require.EqualValues(t, 100+4099, at)
}

// TestHostPlace: other memory at the same addresses is another file, and nobody holds what was unmapped.
func TestHostPlace(t *testing.T) {
	const size = 1 << 20
	p, err := newHostPlace(0, size)
	require.NoError(t, err)
	at, first := p.desc(), p.files()
	p.write(5, []byte{1, 2, 3})
	require.Equal(t, []byte{1, 2, 3}, p.read(5, 3))
	p.unmap()
	n, err := held.By(os.Getpid(), first...)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, p.remap(0))
	require.Equal(t, at, p.desc())
	require.NotEqual(t, first, p.files())
	require.Equal(t, []byte{0, 0, 0}, p.read(5, 3))
	require.Error(t, p.remap(0), "the addresses are in use")
	p.close()
}
