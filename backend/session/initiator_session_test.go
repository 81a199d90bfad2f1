package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/wire"
)

// peerOf is an unconnected session with a peer that offers this number of links. The endpoint of our last rail is
// shared.
func peerOf(links uint8, qps int) *Initiator {
	s := &Initiators{InitiatorConfig: InitiatorConfig{Options: &option.Options{}}, disconnecting: map[*Initiator]*disconnection{}}
	s.Options.QPsPerRail = qps
	s.Links = &Set{Rails: &rails.Set{List: []*rails.Rail{{}, new(rails.Rail).SetCan(provider.Caps{SharedEndpoint: true})}}}
	return &Initiator{s: s, blob: wire.ConnBlob{Links: links}}
}

// Every pair of rails has as many links as both sides want and as fit. A pair over a shared endpoint has one link.
func TestSpread(t *testing.T) {
	one, two, shared := rails.Pair{Own: 0, Peer: 0}, rails.Pair{Own: 0, Peer: 1}, rails.Pair{Own: 1, Peer: 2}
	require.Equal(t, []rails.Pair{one, two, one, two}, peerOf(4, 2).spread([]rails.Pair{one, two}), "ours are fewer")
	require.Equal(t, []rails.Pair{one, two, one, two}, peerOf(2, 4).spread([]rails.Pair{one, two}), "the peer's are")
	require.Equal(t, []rails.Pair{one}, peerOf(0, 4).spread([]rails.Pair{one}), "a peer that offers no number")
	require.Equal(t, []rails.Pair{one, shared, one}, peerOf(2, 2).spread([]rails.Pair{one, shared}))
	many := make([]rails.Pair, core.MaxLinks-1)
	require.Len(t, peerOf(8, 8).spread(many), len(many), "a second round would not fit")
}

// The numbers of a new session begin behind all that the target has.
func TestFirstNumber(t *testing.T) {
	require.EqualValues(t, 7, firstNumber(wire.Welcome{NextSeq: 7}))
	require.EqualValues(t, 17, firstNumber(wire.Welcome{NextSeq: 7, Have: []uint16{2, 9}}), "16 is there already")
}

// A session waits for an older one with the same engine that still delivers, whatever the older one's name was.
func TestOlderThan(t *testing.T) {
	r := peerOf(1, 1)
	r.number, r.blob.Engine = 5, wire.EngineID{1}
	leave := func(number uint64, engine byte) *disconnection {
		d := &disconnection{}
		r.s.disconnecting[&Initiator{s: r.s, number: number, blob: wire.ConnBlob{Engine: wire.EngineID{engine}}}] = d
		return d
	}
	leave(4, 2)
	leave(6, 1)
	require.Nil(t, r.s.olderThan(r), "another engine's, and a later one")
	older := leave(4, 1)
	require.Same(t, older, r.s.olderThan(r))
}

// A peer that answers no question gets no second one. Its late answer serves who asks then. Answers that nobody asked for are
// dropped.
func TestOneQuestionAtATime(t *testing.T) {
	var q question
	var sent []uint64
	send := func(id uint64) { sent = append(sent, id) }
	q.answered(wire.Snapshot{})
	q.answered(wire.Snapshot{ID: 5})
	first := q.ask(5, send)
	second := q.ask(6, send)
	require.Equal(t, []uint64{5}, sent)
	q.answered(wire.Snapshot{ID: 6})
	require.Empty(t, second)
	q.answered(wire.Snapshot{ID: 5, NextSeq: 9})
	q.answered(wire.Snapshot{ID: 5, NextSeq: 10})
	require.EqualValues(t, 9, (<-second).NextSeq)
	require.Empty(t, second, "once")
	require.Empty(t, first, "its report has given up")
	q.ask(7, send)
	require.Equal(t, []uint64{5, 7}, sent)
}

// A FENCE has one answer, whatever a target sends.
func TestFencedOnce(t *testing.T) {
	r, l := peerOf(1, 1), &Link{FenceID: 7}
	l.Epoch, l.Phase = 3, Fencing
	answer := func(id uint64, epoch uint32) bool { return r.awaited(l, wire.Fenced{ID: id, Epoch: epoch}) }
	require.False(t, answer(6, 3), "of an earlier FENCE")
	require.False(t, answer(7, 2))
	require.True(t, answer(7, 3))
	require.False(t, answer(7, 3), "again")
	require.False(t, answer(0, 3))
	l.FenceID, l.Phase = 8, Probing
	require.False(t, answer(8, 3))
}

// An endpoint is connected only while its link waits for it.
func TestWaitsFor(t *testing.T) {
	ep, another := struct{ provider.Endpoint }{}, &struct{ provider.Endpoint }{}
	r, l := peerOf(1, 1), &Link{EP: ep}
	l.Epoch, l.Phase, r.state, r.links = 3, Fencing, ready, []*Link{l}
	require.True(t, r.waitsFor(l, 3, ep))
	require.False(t, r.waitsFor(l, 2, ep))
	require.False(t, r.waitsFor(l, 3, another))
	l.Phase = Probing
	require.False(t, r.waitsFor(l, 3, ep))
	l.Phase, r.state = Fencing, suspended
	require.False(t, r.waitsFor(l, 3, ep))
	r.state, r.links = ready, nil
	require.False(t, r.waitsFor(l, 3, ep), "a link of an earlier connection")
}
