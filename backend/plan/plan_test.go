package plan

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// write merges the pieces. Room for all is in ops.
func write(w *Writer, pieces []Op) error {
	for _, p := range pieces {
		if err := w.Add(p); err != nil {
			return err
		}
	}
	return nil
}

// build plans the pieces.
func build(t require.TestingT, c Config, pieces []Op) []Op {
	w := &Writer{Ops: make([]Op, len(pieces))}
	require.NoError(t, write(w, pieces))
	n := c.Count(w)
	if n > len(w.Ops) {
		w.Ops = append(w.Ops, make([]Op, n-len(w.Ops))...)
	}
	w.Ops = w.Ops[:n]
	c.Cut(w)
	return w.Ops
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
			ops := build(t, tt.config, []Op{{Local: 4096, Remote: 1 << 33, Len: tt.length}})
			var got []uint64
			for _, op := range ops {
				got = append(got, op.Len)
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestAboveFourGiB(t *testing.T) {
	ops := build(t, Config{Links: 2}, []Op{{Local: 0, Remote: 1 << 40, Len: 64 << 30}})
	assert.Len(t, ops, 64<<10)
	assert.EqualValues(t, 1<<40+63<<30+1023<<20, ops[len(ops)-1].Remote)
}

func TestErrors(t *testing.T) {
	plan := func(p ...Op) error { return write(&Writer{Ops: make([]Op, len(p))}, p) }
	err := plan(Op{Len: 1}, Op{Local: math.MaxUint64 - 1, Len: 3})
	assert.ErrorIs(t, err, ErrRange)
	assert.ErrorContains(t, err, "descriptor 1")
	assert.ErrorIs(t, plan(Op{Remote: math.MaxUint64 - 1, Len: 3}), ErrRange)
	assert.ErrorIs(t, plan(Op{Len: 1 << 63}), ErrTooLong)
	assert.ErrorIs(t, plan(Op{Len: 1 << 62}, Op{Local: 1, Len: 1 << 62}), ErrTooLong)
	assert.NoError(t, plan(Op{Len: 1 << 62}, Op{Local: 1, Len: 1<<62 - 1}))
}

// drawPieces makes lists with about as many touching pieces as gaps.
func drawPieces(t *rapid.T) []Op {
	n := rapid.IntRange(0, 300).Draw(t, "n")
	most := rapid.SampledFrom([]uint64{1, 100, 8 << 10, 200 << 10, 8 << 20}).Draw(t, "most")
	pieces := make([]Op, n)
	var local, remote uint64 = 1 << 20, 1 << 40
	for i := range pieces {
		p := Op{Local: local, Remote: remote, Len: rapid.Uint64Range(0, most).Draw(t, "len")}
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
		c := drawConfig(t)
		ops := build(t, c, pieces)

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
func checkBytes(t *rapid.T, pieces, ops []Op) {
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
		pieces := make([]Op, 100_000)
		for i := range pieces {
			pieces[i] = Op{Local: uint64(i) * stride, Remote: uint64(i) * stride, Len: 8192}
		}
		dst := make([]Op, len(pieces))
		assert.Zero(t, testing.AllocsPerRun(5, func() {
			w, c := &Writer{Ops: dst}, Config{Links: 8}
			_ = write(w, pieces)
			w.Ops = w.Ops[:c.Count(w)]
			c.Cut(w)
		}))
	}
}

func drawConfig(t *rapid.T) Config {
	return Config{
		Links:    rapid.IntRange(0, 8).Draw(t, "links"),
		ChunkMin: rapid.SampledFrom([]uint64{0, 1, 4096, 64 << 10}).Draw(t, "chunk min"),
		ChunkMax: rapid.SampledFrom([]uint64{0, 64 << 10, 1 << 20}).Draw(t, "chunk max"),
		MaxMsg:   rapid.SampledFrom([]uint64{0, 10 << 10, 1<<20 - 1}).Draw(t, "max msg"),
	}
}

// reference plans one piece after the other: it merges all, then cuts all.
func reference(c Config, pieces []Op) (ops []Op) {
	var merged []Op
	for _, p := range pieces {
		if n := len(merged); p.Len == 0 {
			continue
		} else if n > 0 && (Op{merged[n-1].Local + merged[n-1].Len, merged[n-1].Remote + merged[n-1].Len, p.Len, merged[n-1].LRegion, merged[n-1].RRegion}) == p {
			merged[n-1].Len += p.Len
			continue
		}
		merged = append(merged, p)
	}
	for _, p := range merged {
		for size := c.cutter().size(p.Len); p.Len > 0; {
			n := min(size, p.Len)
			ops = append(ops, Op{p.Local, p.Remote, n, p.LRegion, p.RRegion})
			p = Op{p.Local + n, p.Remote + n, p.Len - n, p.LRegion, p.RRegion}
		}
	}
	return ops
}

// TestReference compares with the reference.
func TestReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces, c := drawPieces(t), drawConfig(t)
		w := &Writer{Ops: make([]Op, len(pieces)), Len: 0}
		require.NoError(t, write(w, pieces))
		want := reference(c, pieces)
		require.Equal(t, len(want), c.Count(w))
		var bytes uint64
		for _, p := range pieces {
			bytes += p.Len
		}
		require.Equal(t, bytes, w.Bytes)
		ops := build(t, c, pieces)
		require.Equal(t, len(want), len(ops))
		for i := range want {
			require.Equal(t, want[i], ops[i])
		}
	})
}
