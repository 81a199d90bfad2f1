package transfer

import "gorail/backend/core"

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// write merges the pieces. Room for all is in ops.
func write(w *planWriter, pieces []core.Op) error {
	for _, p := range pieces {
		if err := w.Add(p); err != nil {
			return err
		}
	}
	return nil
}

// build plans the pieces.
func build(t require.TestingT, c planConfig, pieces []core.Op) []core.Op {
	w := &planWriter{Plan: core.Plan{Ops: make([]core.Op, len(pieces))}}
	require.NoError(t, write(w, pieces))
	n := c.Count(w)
	if n > len(w.Ops) {
		w.Ops = append(w.Ops, make([]core.Op, n-len(w.Ops))...)
	}
	w.Ops = w.Ops[:n]
	c.Cut(w)
	return w.Ops
}

func TestChunks(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config planConfig
		length uint64
		want   []uint64 // lengths
	}{
		{"below chunk_min", planConfig{}, 128<<10 - 1, []uint64{128<<10 - 1}},
		{"no crumbs", planConfig{}, 128<<10 + 1, []uint64{128<<10 + 1}},
		{"two halves", planConfig{}, 1 << 20, []uint64{512 << 10, 512 << 10}},
		{"two links", planConfig{Links: 2}, 512 << 10, []uint64{128 << 10, 128 << 10, 128 << 10, 128 << 10}},
		{"chunk_max", planConfig{}, 4 << 20, []uint64{1 << 20, 1 << 20, 1 << 20, 1 << 20}},
		{"max_msg", planConfig{MaxMsg: 1000}, 2500, []uint64{834, 834, 832}},
		{"max_msg above all", planConfig{MaxMsg: 1 << 40}, 2 << 20, []uint64{1 << 20, 1 << 20}},
		{"aligned", planConfig{}, 2<<20 + 5, []uint64{700416, 700416, 696325}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ops := build(t, tt.config, []core.Op{{Local: 4096, Remote: 1 << 33, Len: tt.length}})
			var got []uint64
			for _, op := range ops {
				got = append(got, op.Len)
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestAboveFourGiB(t *testing.T) {
	ops := build(t, planConfig{Links: 2}, []core.Op{{Local: 0, Remote: 1 << 40, Len: 64 << 30}})
	assert.Len(t, ops, 64<<10)
	assert.EqualValues(t, 1<<40+63<<30+1023<<20, ops[len(ops)-1].Remote)
}

func TestErrors(t *testing.T) {
	plan := func(p ...core.Op) error { return write(&planWriter{Plan: core.Plan{Ops: make([]core.Op, len(p))}}, p) }
	err := plan(core.Op{Len: 1}, core.Op{Local: math.MaxUint64 - 1, Len: 3})
	assert.ErrorIs(t, err, errRange)
	assert.ErrorContains(t, err, "descriptor 1")
	assert.ErrorIs(t, plan(core.Op{Remote: math.MaxUint64 - 1, Len: 3}), errRange)
	assert.ErrorIs(t, plan(core.Op{Len: 1 << 63}), errTooLong)
	assert.ErrorIs(t, plan(core.Op{Len: 1 << 62}, core.Op{Local: 1, Len: 1 << 62}), errTooLong)
	assert.NoError(t, plan(core.Op{Len: 1 << 62}, core.Op{Local: 1, Len: 1<<62 - 1}))
}

// drawPieces makes lists with about as many touching pieces as gaps.
func drawPieces(t *rapid.T) []core.Op {
	n := rapid.IntRange(0, 300).Draw(t, "n")
	most := rapid.SampledFrom([]uint64{1, 100, 8 << 10, 200 << 10, 8 << 20}).Draw(t, "most")
	pieces := make([]core.Op, n)
	var local, remote uint64 = 1 << 20, 1 << 40
	for i := range pieces {
		p := core.Op{Local: local, Remote: remote, Len: rapid.Uint64Range(0, most).Draw(t, "len")}
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
func checkBytes(t *rapid.T, pieces, ops []core.Op) {
	var op core.Op
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
		pieces := make([]core.Op, 100_000)
		for i := range pieces {
			pieces[i] = core.Op{Local: uint64(i) * stride, Remote: uint64(i) * stride, Len: 8192}
		}
		dst := make([]core.Op, len(pieces))
		assert.Zero(t, testing.AllocsPerRun(5, func() {
			w, c := &planWriter{Plan: core.Plan{Ops: dst}}, planConfig{Links: 8}
			_ = write(w, pieces)
			w.Ops = w.Ops[:c.Count(w)]
			c.Cut(w)
		}))
	}
}

func drawConfig(t *rapid.T) planConfig {
	return planConfig{
		Links:    rapid.IntRange(0, 8).Draw(t, "links"),
		ChunkMin: rapid.SampledFrom([]uint64{0, 1, 4096, 64 << 10}).Draw(t, "chunk min"),
		ChunkMax: rapid.SampledFrom([]uint64{0, 64 << 10, 1 << 20}).Draw(t, "chunk max"),
		MaxMsg:   rapid.SampledFrom([]uint64{0, 10 << 10, 1<<20 - 1}).Draw(t, "max msg"),
	}
}

// reference plans one piece after the other: it merges all, then cuts all.
func reference(c planConfig, pieces []core.Op) (ops []core.Op) {
	var merged []core.Op
	for _, p := range pieces {
		if n := len(merged); p.Len == 0 {
			continue
		} else if n > 0 && (op(merged[n-1].Local+merged[n-1].Len, merged[n-1].Remote+merged[n-1].Len, p.Len, merged[n-1].LRegion, merged[n-1].RRegion)) == p {
			merged[n-1].Len += p.Len
			continue
		}
		merged = append(merged, p)
	}
	for _, p := range merged {
		for size := c.cutter().size(p.Len); p.Len > 0; {
			n := min(size, p.Len)
			ops = append(ops, op(p.Local, p.Remote, n, p.LRegion, p.RRegion))
			p = op(p.Local+n, p.Remote+n, p.Len-n, p.LRegion, p.RRegion)
		}
	}
	return ops
}

// TestReference compares with the reference.
func TestReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces, c := drawPieces(t), drawConfig(t)
		w := &planWriter{Plan: core.Plan{Ops: make([]core.Op, len(pieces))}}
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

func op(local, remote, length uint64, lregion, rregion uint32) core.Op {
	return core.Op{Local: local, Remote: remote, Len: length, LRegion: lregion, RRegion: rregion}
}
