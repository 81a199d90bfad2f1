package initiator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

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
