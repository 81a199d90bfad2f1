package target

import (
	"io"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/lifetime"
	"gorail/backend/limits"
	"gorail/backend/notify"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/wire"
)

func noSessions() *Sessions {
	o := &option.Options{Deadlines: option.Deadlines{PeerTimeout: time.Minute}, Notifications: option.Notifications{NotifMemory: 1 << 20}}
	return &Sessions{Config: Config{Options: o, Life: &lifetime.Engine{}, Limits: &limits.Counts{},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))}, progress: map[wire.EngineID]*notifProgress{}}
}

// upTo is the progress of the sessions first .. last: all numbers below next, and those in beyond, which wait.
func upTo(t *testing.T, first, last, next uint64, beyond ...uint64) *notifProgress {
	asm := notify.New(notify.Limits{MaxDistance: 1 << 20})
	asm.Advance(next)
	for _, seq := range beyond {
		_, err := asm.Add(notify.Frame{Seq: seq, Subs: 1, Total: 1, Payload: []byte("x")})
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
	require.EqualValues(t, 10, s.Limits.Read()["notif_progress"])
}

// A source with many engine ids forgets its own entries before those of others.
func TestProgressOfSources(t *testing.T) {
	s := noSessions()
	honest := upTo(t, 1, 1, 1)
	honest.owner.Source = netip.MustParseAddr("192.0.2.1")
	s.saveProgress(wire.EngineID{255}, honest)
	for i := range 2 * mostProgress {
		many := upTo(t, 1, 1, 1)
		many.owner.Source = netip.MustParseAddr("192.0.2.2")
		s.saveProgress(wire.EngineID{byte(i), byte(i >> 8), 1}, many)
	}
	require.Len(t, s.progress, mostProgress)
	require.Same(t, honest, s.progress[wire.EngineID{255}])
}

// Messages behind gaps of ended sessions are bounded over all engines.
func TestProgressBytes(t *testing.T) {
	s := noSessions()
	defer s.Life.Quiesce(time.Minute)
	long := func() *notifProgress {
		p := upTo(t, 1, 1, 1)
		_, err := p.asm.Add(notify.Frame{Seq: 3, Subs: 1, Total: 600 << 10, Payload: make([]byte, 600<<10)})
		require.NoError(t, err)
		return p
	}
	s.saveProgress(wire.EngineID{1}, long())
	s.saveProgress(wire.EngineID{2}, long())
	require.Equal(t, 1, s.progress[wire.EngineID{1}].asm.Pending())
	require.Zero(t, s.progress[wire.EngineID{2}].asm.Pending())
	require.EqualValues(t, 1, s.progress[wire.EngineID{2}].asm.Next(), "its number is kept")
	require.EqualValues(t, 1, s.Limits.Read()["notif_progress_bytes"])
}

// Notifications that wait for others are bounded over all peers: the session with the most ends.
func TestPendingIsBounded(t *testing.T) {
	s := noSessions()
	a, b := &Session{s: s, in: &peer.In{}}, &Session{s: s, in: &peer.In{}}
	s.byID = map[uint64]*Session{1: a, 2: b}
	require.True(t, s.Life.Quiesce(time.Minute)) // a refused session is not closed in this test
	hold := func(t *Session, bytes int64) {
		t.order.mu.Lock()
		defer t.order.mu.Unlock()
		t.holdPending(bytes)
	}
	refused := func(t *Session) bool {
		t.order.mu.Lock()
		defer t.order.mu.Unlock()
		return t.order.refused
	}
	hold(a, 600<<10)
	hold(b, 400<<10)
	require.False(t, refused(a) || refused(b))
	require.Zero(t, s.Limits.Read()["reassembly"])
	hold(b, 500<<10)
	require.Eventually(t, func() bool { return refused(a) }, time.Minute, time.Millisecond)
	require.False(t, refused(b))
	hold(b, 700<<10)
	require.True(t, refused(b))
	require.EqualValues(t, 2, s.Limits.Read()["reassembly"])
}

// A Drain for what never comes costs little.
func TestDrainLooksRarely(t *testing.T) {
	require.Equal(t, firstLook, nextLook(0))
	require.Equal(t, 5*time.Millisecond, nextLook(20*time.Millisecond))
	require.Equal(t, lastLook, nextLook(time.Hour))
	looks := 0
	for at := time.Duration(0); at < time.Minute; at += nextLook(at) {
		looks++
	}
	require.Less(t, looks, 1300)
}
