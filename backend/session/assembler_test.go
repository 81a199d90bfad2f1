package session

import (
	"bytes"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gorail/internal/pattern"
)

func whole(seq uint64, body string) Frame {
	return Frame{Seq: seq, Subs: 1, Total: uint32(len(body)), Payload: []byte(body)}
}

// add adds a frame that must be accepted, and returns the bodies of the delivered messages.
func add(t require.TestingT, a *Assembler, f Frame) []string {
	msgs, err := a.Add(f)
	require.NoError(t, err)
	return texts(msgs)
}

func texts(msgs []Message) []string {
	var out []string
	for _, m := range msgs {
		out = append(out, string(m.Body))
	}
	return out
}

func TestPayloadIsCopied(t *testing.T) {
	a := NewAssembler(Limits{})
	buf := []byte("abc")
	msgs, err := a.Add(Frame{Subs: 1, Total: 3, Payload: buf})
	require.NoError(t, err)
	buf[0] = 'X'
	assert.Equal(t, "abc", string(msgs[0].Body))
}

// TestMemoryComesWithBytes: a frame that claims a large body allocates memory only for its own payload, at any
// offset. A body in pieces of any size is reassembled correctly.
func TestMemoryComesWithBytes(t *testing.T) {
	const total = 64 << 20
	var before, after runtime.MemStats
	a := NewAssembler(Limits{})
	runtime.ReadMemStats(&before)
	for _, at := range []uint32{total - 1, total / 2, 0} {
		assert.Empty(t, add(t, a, Frame{Subs: 1, Total: total, Offset: at, Payload: []byte{1}}))
	}
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<10))

	want := make([]byte, 3*blockSize+100)
	for i := range want {
		want[i] = byte(rand.Uint32())
	}
	a = NewAssembler(Limits{})
	var got []Message
	for at := 0; at < len(want); {
		n := min(len(want)-at, 1+rand.IntN(2*blockSize))
		var err error
		got, err = a.Add(Frame{Subs: 1, Total: uint32(len(want)), Offset: uint32(at), Payload: want[at : at+n]})
		require.NoError(t, err)
		at += n
	}
	require.Len(t, got, 1)
	pattern.Same(t, want, got[0].Body)
}

// TestSubs: a message with a complete body waits until every sub-transfer is proved. A frame that comes twice proves nothing
// more.
func TestSubs(t *testing.T) {
	a := NewAssembler(Limits{})
	marker := func(sub uint16) Frame { return Frame{Subs: 3, Sub: sub, Total: 2} }
	assert.Empty(t, add(t, a, Frame{Subs: 3, Sub: 1, Total: 2, Payload: []byte("hi")}))
	assert.Empty(t, add(t, a, marker(2)))
	assert.Empty(t, add(t, a, marker(2)))
	assert.Empty(t, add(t, a, marker(1)))
	assert.EqualValues(t, 2, a.Counts().Duplicates)
	assert.Equal(t, []string{"hi"}, add(t, a, marker(0)))
	many := NewAssembler(Limits{})
	for p := range math.MaxUint16 {
		got := add(t, many, Frame{Subs: math.MaxUint16, Sub: uint16(p)})
		assert.Equal(t, p == math.MaxUint16-1, len(got) == 1)
	}
}

func TestErrors(t *testing.T) {
	limits := Limits{MaxBody: 1000, MaxPending: 2000, MaxDistance: 10}
	for _, tt := range []struct {
		name  string
		frame Frame
		want  error
	}{
		{"body", Frame{Subs: 1, Total: 1001}, ErrBody},
		{"range", Frame{Subs: 1, Total: 2, Offset: 1, Payload: []byte("ab")}, ErrRange},
		{"range wraps", Frame{Subs: 1, Total: 2, Offset: math.MaxUint32, Payload: []byte("ab")}, ErrRange},
		{"no subs", Frame{}, ErrSubs},
		{"sub", Frame{Subs: 2, Sub: 2}, ErrSubs},
		{"size differs", Frame{Seq: 1, Subs: 1, Total: 11}, ErrMismatch},
		{"subs differ", Frame{Seq: 1, Subs: 2, Total: 10}, ErrMismatch},
		{"pending", Frame{Seq: 2, Subs: 1, Total: 1000}, ErrPending},
		{"distance", Frame{Seq: 11, Subs: 1}, ErrDistance},
		{"far distance", Frame{Seq: math.MaxUint64, Subs: 1}, ErrDistance},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := NewAssembler(limits)
			add(t, a, Frame{Seq: 1, Subs: 1, Total: 10, Payload: []byte("a")})
			add(t, a, Frame{Seq: 3, Subs: 1, Total: 500, Payload: []byte("a")})
			before := a.Counts()
			msgs, err := a.Add(tt.frame)
			assert.ErrorIs(t, err, tt.want)
			assert.Empty(t, msgs)
			assert.Equal(t, before, a.Counts(), "a refused frame leaves nothing behind")
		})
	}
}

// TestNextAlwaysFits: a full assembler still takes the message that the others wait for.
func TestNextAlwaysFits(t *testing.T) {
	a := NewAssembler(Limits{MaxBody: 1000, MaxPending: 1000})
	add(t, a, Frame{Seq: 1, Subs: 1, Total: 700, Payload: make([]byte, 700)})
	_, err := a.Add(Frame{Seq: 2, Subs: 1, Total: 700})
	require.ErrorIs(t, err, ErrPending)
	add(t, a, Frame{Seq: 0, Subs: 1, Total: 1000, Payload: make([]byte, 500)})
	assert.Len(t, add(t, a, Frame{Seq: 0, Subs: 1, Total: 1000, Offset: 500, Payload: make([]byte, 500)}), 2)
}

func TestTooManyPieces(t *testing.T) {
	a := NewAssembler(Limits{})
	for i := range uint32(maxSpans) {
		add(t, a, Frame{Subs: 1, Total: 1 << 20, Offset: 2 * i, Payload: []byte("x")})
	}
	_, err := a.Add(Frame{Subs: 1, Total: 1 << 20, Offset: 2 * maxSpans, Payload: []byte("x")})
	assert.ErrorIs(t, err, ErrPending)
}

func TestDropPartialAndAdvance(t *testing.T) {
	a := NewAssembler(Limits{})
	add(t, a, Frame{Seq: 0, Subs: 2, Total: 4, Payload: []byte("ab")})
	add(t, a, whole(1, "one"))
	assert.Equal(t, 1, a.DropPartial())
	assert.Equal(t, []string{"new", "one"}, add(t, a, whole(0, "new")), "the replay may have another size and other sub-transfers")

	add(t, a, whole(3, "three"))
	add(t, a, whole(5, "five"))
	assert.Empty(t, a.Advance(1))
	assert.Equal(t, []string{"three"}, texts(a.Advance(3)))
	assert.Equal(t, []string{"five"}, texts(a.Advance(5)))
	assert.EqualValues(t, 6, a.Next())
	assert.Zero(t, a.Counts().Bytes)
	add(t, a, whole(8, "skipped"))
	assert.Empty(t, a.Advance(20))
	assert.Zero(t, a.Counts())
}

// TestAnyOrder: messages are delivered whole, once and in order, whatever the order and the duplicates of the frames.
func TestAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bodies := rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 40), 1, 8).Draw(t, "bodies")
		var frames []Frame
		for seq, body := range bodies {
			frames = append(frames, cutUp(t, uint64(seq), body)...)
		}
		frames = append(frames, rapid.SliceOfN(rapid.SampledFrom(frames), 0, 20).Draw(t, "again")...)
		frames = rapid.Permutation(frames).Draw(t, "order")

		a := NewAssembler(Limits{})
		var got []Message
		seen := map[uint64]map[uint16]bool{}
		for _, f := range frames {
			if seen[f.Seq] == nil {
				seen[f.Seq] = map[uint16]bool{}
			}
			seen[f.Seq][f.Sub] = true
			msgs, err := a.Add(f)
			require.NoError(t, err)
			for _, m := range msgs {
				require.Len(t, seen[m.Seq], subs(frames, m.Seq), "delivered before all sub-transfers were proved")
			}
			got = append(got, msgs...)
			require.EqualValues(t, len(got), a.Next())
		}
		require.Len(t, got, len(bodies))
		for i, m := range got {
			require.EqualValues(t, i, m.Seq)
			pattern.Same(t, bodies[i], m.Body)
		}
		require.Zero(t, a.Counts().Bytes)
		require.Zero(t, a.Pending())
	})
}

func subs(frames []Frame, seq uint64) int {
	for _, f := range frames {
		if f.Seq == seq {
			return int(f.Subs)
		}
	}
	return 0
}

// cutUp makes a message's frames: one marker for each sub-transfer, and fragments with random ones.
func cutUp(t *rapid.T, seq uint64, body []byte) []Frame {
	n := rapid.Uint16Range(1, 4).Draw(t, "subs")
	var frames []Frame
	for p := range n {
		frames = append(frames, Frame{Seq: seq, Subs: n, Sub: p, Total: uint32(len(body))})
	}
	for off := 0; off < len(body); {
		size := rapid.IntRange(1, len(body)-off).Draw(t, "size")
		sub := rapid.Uint16Range(0, n-1).Draw(t, "sub")
		frames = append(frames, Frame{Seq: seq, Subs: n, Sub: sub, Total: uint32(len(body)), Offset: uint32(off), Payload: body[off : off+size]})
		off += size
	}
	return frames
}

// TestSpansModel compares the spans with a plain set of bytes.
func TestSpansModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 40
		var s spans
		var have [size]bool
		for range rapid.IntRange(1, 30).Draw(t, "adds") {
			from := rapid.Uint32Range(0, size).Draw(t, "from")
			n := rapid.Uint32Range(0, size-from).Draw(t, "n")
			fresh := false
			for i := from; i < from+n; i++ {
				fresh = fresh || !have[i]
				have[i] = true
			}
			require.Equal(t, fresh, s.add(from, n))
			var back [size]bool
			for i, e := range s {
				require.Less(t, e.from, e.to)
				require.True(t, i == 0 || s[i-1].to < e.from, "%v", s)
				for j := e.from; j < e.to; j++ {
					back[j] = true
				}
			}
			require.Equal(t, have, back)
		}
	})
}

// FuzzAdd adds arbitrary frames: no panic, the limits hold, the order holds. Each 8 bytes of input make a frame.
func FuzzAdd(f *testing.F) {
	f.Add([]byte{0, 1, 0, 4, 0, 4, 0, 0, 1, 1, 0, 4, 0, 2, 0, 0})
	f.Add([]byte{0, 2, 0, 9, 0, 4, 0, 0, 0, 2, 1, 9, 4, 5, 0, 0})
	f.Add(bytes.Repeat([]byte{3, 1, 0, 200, 7, 1, 9, 0}, 20))
	f.Fuzz(func(t *testing.T, in []byte) {
		limits := Limits{MaxBody: 250, MaxPending: 3000, MaxDistance: 20}
		a := NewAssembler(limits)
		next := uint64(0)
		for ; len(in) >= 8; in = in[8:] {
			fr := Frame{Seq: uint64(in[0]) + uint64(in[7])<<56, Subs: uint16(in[1]), Sub: uint16(in[2]), Total: uint32(in[3]),
				Offset: uint32(in[4]) | uint32(in[6])<<24, Payload: make([]byte, in[5])}
			msgs, _ := a.Add(fr)
			for _, m := range msgs {
				if m.Seq != next || len(m.Body) > int(limits.MaxBody) {
					t.Fatalf("message %d of %d bytes, want number %d", m.Seq, len(m.Body), next)
				}
				next++
			}
			held := uint64(0)
			for _, m := range a.held {
				held += m.cost()
			}
			if c := a.Counts(); c.Bytes != held || a.Next() != next || held > 2*limits.MaxPending+uint64(limits.MaxBody)+overhead {
				t.Fatalf("%+v, held %d, next %d, want %d", c, held, a.Next(), next)
			}
		}
	})
}
