package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/internal/pattern"
	"gorail/nixlapi"
)

// serving is a node without an agent.
func serving(t *testing.T, decode bool) *Server {
	in := OpenArgs{Decode: decode, Prefills: 2, Shape: Shape{Layers: 2, Blocks: 2, Block: 64, Slots: 2}}
	s := &Server{in: in, orders: map[uint64][]int32{}, pulls: make(chan func(), 1), held: &held{read: map[uint64]int{}}}
	var err error
	s.buf, err = nixlapi.Alloc(in.slots() * int(in.Shape.Bytes()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.buf.Free()) })
	return s
}

// TestHeld: a slot is filled anew when one notification of its request has come, not without one and not after two.
func TestHeld(t *testing.T) {
	s := serving(t, false)
	in := PromptArgs{Request: 8, Slot: 1, Before: 7, Within: time.Millisecond}
	require.ErrorContains(t, s.Prompt(in, nil), "request 7 was read, and its notification has not come after 1ms")
	s.held.read[7] = 2
	require.ErrorContains(t, s.Prompt(in, nil), "has come 2 times")
	s.held.read[7] = 1
	require.NoError(t, s.Prompt(in, nil))
	require.Empty(t, s.held.read)
	require.EqualValues(t, -1, pattern.Diff(s.buf.B[256:], 8, 0))
	require.NotEqualValues(t, -1, pattern.Diff(s.buf.B[:256], 8, 0), "the other slot")
	for _, slot := range []int{-1, 2} {
		require.Error(t, s.Prompt(PromptArgs{Slot: slot}, nil))
	}
	require.Error(t, serving(t, true).Prompt(in, nil), "a decode node")
	require.Error(t, Remote().Step(time.Hour, nil))
}

// TestDiffer: each block of a request is compared with the bytes that its prefill node filled in, wherever it lies on both sides.
func TestDiffer(t *testing.T) {
	pre, dec := serving(t, false), serving(t, true)
	require.NoError(t, pre.Prompt(PromptArgs{Request: 9, Slot: 1}, nil))
	p := &pull{PullArgs: PullArgs{Request: 9, Prefill: 1, Slot: 1}}
	p.here, p.there = dec.ids(true, 1, 0, 1, 0, 2), dec.ids(false, 1, 0, 1, 0, 2)
	require.Len(t, p.here, 4)
	for k := range p.here {
		copy(dec.buf.B[int(p.here[k])*64:][:64], pre.buf.B[int(p.there[k])*64:])
	}
	require.Empty(t, dec.differ(p))
	dec.buf.B[int(p.here[2])*64+5]++
	require.Equal(t, "request 9: block 2 of prefill 1 differs at byte 5", dec.differ(p))
	p.Request = 10
	require.Contains(t, dec.differ(p), "block 0", "bytes of an older request")
}
