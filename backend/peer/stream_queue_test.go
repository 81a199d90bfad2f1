package peer

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// ids takes about n bytes of frames and returns the ids of the revocations among them.
func ids(q *queue, n int) (ids []uint64) {
	frames, _, _ := q.take(nil, n)
	for _, f := range frames {
		if r, ok := f.(*wire.Revoke); ok {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

func TestQueueKeepsUntilAcknowledged(t *testing.T) {
	const cost = 64
	q := newQueue(5*cost, func() {})
	for i := range uint64(5) {
		require.True(t, q.push(&wire.Revoke{ID: i}))
	}
	assert.False(t, q.push(&wire.Revoke{}), "full")
	assert.Equal(t, []uint64{0, 1, 2}, ids(q, 3*cost))
	assert.False(t, q.push(&wire.Revoke{}), "sent frames count")
	assert.False(t, q.ack(4), "more than was sent")
	assert.True(t, q.ack(2))
	assert.True(t, q.ack(1), "late")
	assert.Equal(t, 3*cost, q.bytes)
	assert.Equal(t, 2*cost, q.unsent)
	require.True(t, q.push(&wire.Revoke{ID: 5}))

	assert.False(t, q.resumable(1))
	assert.False(t, q.resumable(4))
	for _, got := range []uint64{1, 4} {
		_, ok := q.rewind(got)
		assert.False(t, ok)
	}
	resent, ok := q.rewind(2)
	assert.True(t, ok)
	assert.Equal(t, uint64(1), resent)
	assert.Equal(t, q.bytes, q.unsent)
	assert.Equal(t, []uint64{2, 3}, ids(q, 2*cost))
	resent, ok = q.rewind(4)
	assert.True(t, ok)
	assert.Zero(t, resent)
	assert.Equal(t, []uint64{4, 5}, ids(q, 1<<20))
	assert.True(t, q.ack(6))
	assert.Zero(t, q.bytes)
	assert.Zero(t, q.unsent)
	assert.Nil(t, q.items)
	assert.Equal(t, uint64(6), q.acked())
}

// An acknowledgement may count more frames than the next connection has sent: the previous connection carried them.
func TestQueueAcknowledgedBeyondWhatWasSentAgain(t *testing.T) {
	q := newQueue(1<<20, func() {})
	for i := range uint64(4) {
		q.push(&wire.Revoke{ID: i})
	}
	assert.Len(t, ids(q, 1<<20), 4)
	_, ok := q.rewind(0)
	require.True(t, ok)
	assert.Equal(t, []uint64{0}, ids(q, 1))
	assert.True(t, q.ack(3))
	assert.Equal(t, []uint64{3}, ids(q, 1<<20))
	assert.Zero(t, q.unsent)
}

func TestQueuePacesKeysRequests(t *testing.T) {
	q := newQueue(64<<20, func() {})
	asks := func() (n int) {
		frames, _, _ := q.take(nil, 64<<20)
		return len(frames)
	}
	for range 10 {
		q.push(&wire.KeysReq{Ranges: make([]wire.Claim, wire.MaxRanges)})
	}
	q.push(&wire.Revoked{})
	assert.Equal(t, 4, asks())
	assert.Zero(t, asks())
	q.answered(wire.MaxRanges)
	assert.Equal(t, 1, asks())
	_, ok := q.rewind(1)
	require.True(t, ok)
	assert.Equal(t, 4, asks(), "those sent again don't count twice")
	for range 5 {
		q.answered(wire.MaxRanges)
	}
	assert.Equal(t, 4, asks())
	q.finish(&wire.Bye{})
	assert.Equal(t, 3, asks(), "the last frames do not wait")
	_, _, end := q.take(nil, 1)
	assert.True(t, end)
}
