package target

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A session gets a few snapshots at once, then one a second, and one at a time. All sessions together have a limit, too, which
// one session alone does not reach.
func TestSnapshotsTakePlaces(t *testing.T) {
	s := noSessions()
	s.snapshots = newSnapshots()
	session := func() *Session { return &Session{s: s, asked: newAsked()} }
	now := time.Now()
	ask := func(t *Session) bool {
		if !t.mayAsk(now) {
			return false
		}
		<-t.asked.busy
		return true
	}
	a := session()
	for range 1000 {
		ask(a)
	}
	require.InDelta(t, snapshotsOfPeers-snapshotsAtOnce, s.snapshots.TokensAt(now), 0.01, "a flood takes no more than the session's share")
	now = now.Add(time.Second)
	require.True(t, ask(a))
	require.False(t, ask(a))
	now = now.Add(time.Hour)
	require.True(t, a.mayAsk(now))
	require.False(t, a.mayAsk(now), "the goroutine of the first works")
	<-a.asked.busy
	require.True(t, ask(a))

	now = now.Add(time.Hour)
	got := 0
	for range 100 {
		for b, more := session(), true; more; {
			if more = ask(b); more {
				got++
			}
		}
	}
	require.Equal(t, snapshotsOfPeers, got)
	now = now.Add(time.Second)
	require.True(t, ask(session()))
}
