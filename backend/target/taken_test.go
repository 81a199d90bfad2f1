package target

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/lifetime"
	"gorail/backend/notify"
	"gorail/backend/option"
	"gorail/backend/wire"
)

func noSessions() *Sessions {
	return &Sessions{Config: Config{Options: &option.Options{Deadlines: option.Deadlines{PeerTimeout: time.Minute}}, Life: &lifetime.Engine{},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}, taken: map[wire.EngineID]*taken{}}
}

// upTo is what the sessions first .. last have taken: all numbers below next, and those in beyond, which wait.
func upTo(t *testing.T, first, last, next uint64, beyond ...uint64) *taken {
	asm := notify.New(notify.Limits{MaxDistance: 1 << 20})
	asm.Advance(next)
	for _, seq := range beyond {
		_, err := asm.Add(notify.Frame{Seq: seq, Parts: 1, Total: 1, Payload: []byte("x")})
		require.NoError(t, err)
	}
	return &taken{first: first, last: last, asm: asm, skip: map[uint64]bool{}}
}

// A session goes on with the numbers of the one before it, if the initiator names that one.
func TestTakenBefore(t *testing.T) {
	engine, other := wire.EngineID{1}, wire.EngineID{2}
	s := noSessions()
	require.Nil(t, s.takenBefore(engine, 3), "nothing is known")
	s.noteTaken(engine, upTo(t, 3, 5, 100, 102, 105))
	require.Nil(t, s.takenBefore(other, 5))
	for after := uint64(3); after <= 5; after++ {
		got := s.takenBefore(engine, after)
		require.EqualValues(t, 100, got.asm.Next())
		require.Equal(t, []uint16{2, 5}, distances(got.asm))
	}
	s.noteTaken(engine, upTo(t, 3, 4, 90))
	require.EqualValues(t, 100, s.takenBefore(engine, 5).asm.Next(), "an older session that ends later says nothing new")
	require.Nil(t, s.takenBefore(engine, 6), "numbers of another session")
	require.Nil(t, s.takenBefore(engine, 5), "and these are forgotten then")
}

// What waits behind a gap is given up when the initiator can't have so much out.
func TestTakenTooFar(t *testing.T) {
	engine := wire.EngineID{1}
	s := noSessions()
	s.noteTaken(engine, upTo(t, 1, 1, 10, 10+70_000))
	got := s.takenBefore(engine, 1)
	require.EqualValues(t, 10, got.asm.Next())
	require.Zero(t, got.asm.Pending())
}

// Many engines that never come back cost no more than so many places; one that took nothing costs none.
func TestTakenBounded(t *testing.T) {
	s := noSessions()
	s.noteTaken(wire.EngineID{255}, upTo(t, 1, 1, 0))
	require.Empty(t, s.taken)
	for i := range mostTaken + 10 {
		s.noteTaken(wire.EngineID{byte(i), byte(i >> 8), 1}, upTo(t, 1, 1, 1))
	}
	require.Len(t, s.taken, mostTaken)
}
