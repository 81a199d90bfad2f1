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
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}, progress: map[wire.EngineID]*notifProgress{}}
}

// upTo is the progress of the sessions first .. last: all numbers below next, and those in beyond, which wait.
func upTo(t *testing.T, first, last, next uint64, beyond ...uint64) *notifProgress {
	asm := notify.New(notify.Limits{MaxDistance: 1 << 20})
	asm.Advance(next)
	for _, seq := range beyond {
		_, err := asm.Add(notify.Frame{Seq: seq, Parts: 1, Total: 1, Payload: []byte("x")})
		require.NoError(t, err)
	}
	return &notifProgress{first: first, last: last, asm: asm, skip: map[uint64]bool{}}
}

// A session continues the numbers of the session before it, if the initiator names that one.
func TestProgressAfter(t *testing.T) {
	engine, other := wire.EngineID{1}, wire.EngineID{2}
	s := noSessions()
	require.Nil(t, s.progressAfter(engine, 3), "nothing is known")
	s.saveProgress(engine, upTo(t, 3, 5, 100, 102, 105))
	require.Nil(t, s.progressAfter(other, 5))
	for after := uint64(3); after <= 5; after++ {
		got := s.progressAfter(engine, after)
		require.EqualValues(t, 100, got.asm.Next())
		require.Equal(t, []uint16{2, 5}, distances(got.asm))
	}
	s.saveProgress(engine, upTo(t, 3, 4, 90))
	require.EqualValues(t, 100, s.progressAfter(engine, 5).asm.Next(), "an older session that ends later says nothing new")
	require.Nil(t, s.progressAfter(engine, 6), "numbers of another session")
	require.Nil(t, s.progressAfter(engine, 5), "and these are forgotten then")
}

// Messages behind a gap are given up if the initiator cannot have so many in flight.
func TestProgressTooFar(t *testing.T) {
	engine := wire.EngineID{1}
	s := noSessions()
	s.saveProgress(engine, upTo(t, 1, 1, 10, 10+70_000))
	got := s.progressAfter(engine, 1)
	require.EqualValues(t, 10, got.asm.Next())
	require.Zero(t, got.asm.Pending())
}

// Engines that never come back cost at most mostProgress entries. An engine without notifications costs none.
func TestProgressBounded(t *testing.T) {
	s := noSessions()
	s.saveProgress(wire.EngineID{255}, upTo(t, 1, 1, 0))
	require.Empty(t, s.progress)
	for i := range mostProgress + 10 {
		s.saveProgress(wire.EngineID{byte(i), byte(i >> 8), 1}, upTo(t, 1, 1, 1))
	}
	require.Len(t, s.progress, mostProgress)
}
