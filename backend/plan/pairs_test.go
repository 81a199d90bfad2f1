package plan

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// objects stand for metadata objects: memory of some regions of both sides.
var objects [8][6]uint64

// side is a side of the pairs of a test: region i is at 1<<40*i, and its windows are known up to a number.
type side struct {
	Windows
	regions int
}

const regionLen = 1 << 12

func (s *side) window(i int) Window {
	return Window{MD: unsafe.Pointer(&objects[i]), Addr: uint64(i) << 40, Size: regionLen, Index: uint32(i)}
}

func drawSide(t *rapid.T, name string) *side {
	s := &side{regions: rapid.IntRange(1, len(objects)).Draw(t, name)}
	if s.regions > 1 {
		s.Several()
	}
	for i := range s.regions {
		s.Keep(s.window(i))
	}
	return s
}

// drawPairs draws pairs in runs: most touch the one before, or have its distance to it. Some are not inside their window, or have
// different lengths, or a metadata object that is not known.
func drawPairs(t *rapid.T, l, r *side) (local, remote []Desc) {
	at := func(s *side) Desc {
		i := rapid.IntRange(0, min(s.regions, len(objects)-1)).Draw(t, "region") // one more than are known
		return Desc{Addr: uint64(i)<<40 + rapid.Uint64Range(0, regionLen/2).Draw(t, "offset"), MD: unsafe.Pointer(&objects[i])}
	}
	for range rapid.IntRange(0, 12).Draw(t, "runs") {
		a, b := at(l), at(r)
		a.Len = rapid.SampledFrom([]uint64{0, 1, 64, 64, 64, regionLen + 1}).Draw(t, "length")
		b.Len = a.Len + rapid.SampledFrom([]uint64{0, 0, 0, 0, 0, 1}).Draw(t, "longer")
		gap, far := rapid.Uint64Range(0, 1).Draw(t, "gap")*64, rapid.Uint64Range(0, 1).Draw(t, "gap")*8
		for range rapid.IntRange(1, 20).Draw(t, "pairs") {
			local, remote = append(local, a), append(remote, b)
			a.Addr, b.Addr = a.Addr+a.Len+gap, b.Addr+b.Len+far
		}
	}
	return local, remote
}

// known reports that a descriptor is inside a known window.
func (s *side) known(d *Desc) bool {
	i := int(d.Addr >> 40)
	w := s.window(i)
	return i < s.regions && d.Addr-w.Addr <= w.Size && d.Len <= w.Size-(d.Addr-w.Addr)
}

// Pairs takes exactly the pairs inside known windows that there is room for, and adds what Add would.
func TestPairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, r := drawSide(t, "local regions"), drawSide(t, "remote regions")
		local, remote := drawPairs(t, l, r)
		room := rapid.IntRange(0, len(local)+1).Draw(t, "room")
		w, want := &Writer{Ops: make([]Op, room)}, &Writer{Ops: make([]Op, len(local))}
		i := 0
		for i < len(local) {
			n := w.Pairs(local[i:], remote[i:], &l.Windows, &r.Windows)
			for k := i; k < i+n; k++ {
				require.True(t, l.known(&local[k]) && r.known(&remote[k]) && local[k].Len == remote[k].Len)
				require.NoError(t, want.Add(Op{local[k].Addr, remote[k].Addr, local[k].Len, uint32(local[k].Addr >> 40), uint32(remote[k].Addr >> 40)}))
			}
			if i += n; i == len(local) {
				break
			}
			if l.known(&local[i]) && r.known(&remote[i]) && local[i].Len == remote[i].Len {
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
		whole := Window{MD: unsafe.Pointer(&objects[0]), Size: size}
		s := Windows{Last: whole}
		var d []Desc
		for range 9 {
			d = append(d, Desc{Len: min(size, 1<<60), MD: whole.MD})
		}
		w := &Writer{Ops: make([]Op, len(d))}
		n := w.Pairs(d, d, &s, &s)
		require.Less(t, w.Bytes, uint64(1)<<63)
		var err error
		for ; n < len(d) && err == nil; n++ {
			err = w.Add(Op{Len: d[n].Len})
		}
		require.ErrorIs(t, err, ErrTooLong)
		require.Equal(t, 8, n, "the eighth has the byte that is too much")
	}
}
