package plan

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestOpSize(t *testing.T) {
	assert.EqualValues(t, OpSize, unsafe.Sizeof(Op{}))
}

// source makes a Source from a function of the index.
func source(at func(i int) Piece) Source {
	return func(first int, dst []Piece) {
		for i := range dst {
			dst[i] = at(first + i)
		}
	}
}

// build runs both passes.
func build(t require.TestingT, c Config, pieces []Piece) (Layout, []Op) {
	at := source(func(i int) Piece { return pieces[i] })
	l, err := c.Count(len(pieces), at)
	require.NoError(t, err)
	ops := make([]Op, l.Ops)
	require.NoError(t, c.Fill(ops, len(pieces), at))
	return l, ops
}

func TestEmpty(t *testing.T) {
	l, _ := build(t, Config{}, nil)
	assert.Zero(t, l.Ops)
	l, _ = build(t, Config{Links: 2}, []Piece{{Local: 5, Remote: 7}, {Local: math.MaxUint64}})
	assert.Zero(t, l.Ops, "pieces without bytes give no operations")
}

func TestMerge(t *testing.T) {
	_, ops := build(t, Config{}, []Piece{
		{Local: 0, Remote: 1000, Len: 10},
		{Local: 10, Remote: 1010, Len: 10}, // touches
		{Local: 999, Remote: 1, Len: 0},    // empty: does not prevent a merge
		{Local: 20, Remote: 1020, Len: 5},  // touches
		{Local: 25, Remote: 2000, Len: 5},  // remote gap
		{Local: 40, Remote: 2005, Len: 5},  // local gap
		{Local: 45, Remote: 2010, Len: 5, LRegion: 1},
		{Local: 50, Remote: 2015, Len: 5, LRegion: 1, RRegion: 1},
	})
	assert.Equal(t, []Op{
		{Local: 0, Remote: 1000, Len: 25},
		{Local: 25, Remote: 2000, Len: 5},
		{Local: 40, Remote: 2005, Len: 5},
		{Local: 45, Remote: 2010, Len: 5, LRegion: 1},
		{Local: 50, Remote: 2015, Len: 5, LRegion: 1, RRegion: 1},
	}, ops)
}

func TestChunks(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config Config
		length uint64
		want   []uint64 // lengths
	}{
		{"below chunk_min", Config{}, 128<<10 - 1, []uint64{128<<10 - 1}},
		{"no crumbs", Config{}, 128<<10 + 1, []uint64{128<<10 + 1}},
		{"two halves", Config{}, 1 << 20, []uint64{512 << 10, 512 << 10}},
		{"two links", Config{Links: 2}, 512 << 10, []uint64{128 << 10, 128 << 10, 128 << 10, 128 << 10}},
		{"chunk_max", Config{}, 4 << 20, []uint64{1 << 20, 1 << 20, 1 << 20, 1 << 20}},
		{"max_msg", Config{MaxMsg: 1000}, 2500, []uint64{834, 834, 832}},
		{"max_msg above all", Config{MaxMsg: 1 << 40}, 2 << 20, []uint64{1 << 20, 1 << 20}},
		{"aligned", Config{}, 2<<20 + 5, []uint64{700416, 700416, 696325}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, ops := build(t, tt.config, []Piece{{Local: 4096, Remote: 1 << 33, Len: tt.length}})
			var got []uint64
			for _, op := range ops {
				got = append(got, op.Len)
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestAboveFourGiB(t *testing.T) {
	l, ops := build(t, Config{Links: 2}, []Piece{{Local: 0, Remote: 1 << 40, Len: 64 << 30}})
	assert.Equal(t, 64<<10, l.Ops)
	assert.EqualValues(t, 1<<40+63<<30+1023<<20, ops[len(ops)-1].Remote)
}

func TestErrors(t *testing.T) {
	at := func(p ...Piece) (int, Source) { return len(p), source(func(i int) Piece { return p[i] }) }
	_, err := Config{}.Count(at(Piece{Len: 1}, Piece{Local: math.MaxUint64 - 1, Len: 3}))
	assert.ErrorIs(t, err, ErrRange)
	assert.ErrorContains(t, err, "descriptor 1")
	_, err = Config{}.Count(at(Piece{Remote: math.MaxUint64 - 1, Len: 3}))
	assert.ErrorIs(t, err, ErrRange)
	_, err = Config{}.Count(at(Piece{Len: 1 << 63}))
	assert.ErrorIs(t, err, ErrTooLong)
	_, err = Config{}.Count(at(Piece{Len: 1 << 62}, Piece{Local: 1, Len: 1 << 62}))
	assert.ErrorIs(t, err, ErrTooLong)
	n, f := at(Piece{Len: 8 << 20})
	assert.ErrorIs(t, Config{}.Fill(make([]Op, 7), n, f), ErrTooShort)
	assert.ErrorIs(t, Config{}.Fill(nil, 1, source(func(int) Piece { return Piece{Len: 1} })), ErrTooShort)
}

// drawPieces makes lists with about as many touching pieces as gaps.
func drawPieces(t *rapid.T) []Piece {
	n := rapid.IntRange(0, 300).Draw(t, "n")
	most := rapid.SampledFrom([]uint64{1, 100, 8 << 10, 200 << 10, 8 << 20}).Draw(t, "most")
	pieces := make([]Piece, n)
	var local, remote uint64 = 1 << 20, 1 << 40
	for i := range pieces {
		p := Piece{Local: local, Remote: remote, Len: rapid.Uint64Range(0, most).Draw(t, "len")}
		p.LRegion = rapid.Uint32Range(0, 1).Draw(t, "region")
		pieces[i] = p
		local += p.Len + rapid.SampledFrom([]uint64{0, 0, 64}).Draw(t, "lgap")
		remote += p.Len + rapid.SampledFrom([]uint64{0, 0, 64}).Draw(t, "rgap")
	}
	return pieces
}

// byteMove is the source and the destination of a byte.
type byteMove struct {
	local, remote    uint64
	lregion, rregion uint32
}

// TestPlanProperties checks that every byte is planned exactly once and in order, within the limits.
func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := drawPieces(t)
		c := Config{
			Links:    rapid.IntRange(0, 8).Draw(t, "links"),
			ChunkMin: rapid.SampledFrom([]uint64{0, 1, 4096, 64 << 10}).Draw(t, "chunk min"),
			ChunkMax: rapid.SampledFrom([]uint64{0, 64 << 10, 1 << 20}).Draw(t, "chunk max"),
			MaxMsg:   rapid.SampledFrom([]uint64{0, 10 << 10, 1<<20 - 1}).Draw(t, "max msg"),
		}
		_, ops := build(t, c, pieces)

		checkBytes(t, pieces, ops)
		k := c.cutter()
		for _, op := range ops {
			require.LessOrEqual(t, op.Len, max(k.max, k.min))
			if c.MaxMsg > 0 {
				require.LessOrEqual(t, op.Len, c.MaxMsg)
			}
		}
	})
}

// checkBytes compares both lists byte range by byte range: the operations are the pieces, cut or merged.
func checkBytes(t *rapid.T, pieces []Piece, ops []Op) {
	var op Op
	for _, p := range pieces {
		for p.Len > 0 {
			if op.Len == 0 {
				require.NotEmpty(t, ops, "a byte is missing")
				op, ops = ops[0], ops[1:]
				require.NotZero(t, op.Len)
			}
			require.Equal(t, byteMove{p.Local, p.Remote, p.LRegion, p.RRegion}, byteMove{op.Local, op.Remote, op.LRegion, op.RRegion})
			n := min(p.Len, op.Len)
			p.Local, p.Remote, p.Len = p.Local+n, p.Remote+n, p.Len-n
			op.Local, op.Remote, op.Len = op.Local+n, op.Remote+n, op.Len-n
		}
	}
	require.Zero(t, op.Len)
	require.Empty(t, ops, "a byte is planned twice")
}

func TestNothingAllocatedPerDescriptor(t *testing.T) {
	for _, stride := range []uint64{8192, 16384} { // all merge; none merges
		at := source(func(i int) Piece { return Piece{Local: uint64(i) * stride, Remote: uint64(i) * stride, Len: 8192} })
		dst := make([]Op, 100_000)
		for _, n := range []int{1000, len(dst)} {
			assert.LessOrEqual(t, testing.AllocsPerRun(5, func() {
				_, _ = Config{Links: 8}.Count(n, at)
				_ = Config{Links: 8}.Fill(dst, n, at)
			}), 2.0, "one buffer per pass, for any number of descriptors")
		}
	}
}
