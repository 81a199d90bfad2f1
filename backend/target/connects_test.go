package target

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
	"gorail/backend/quota"
)

// Connects have turns of their own: a session has a share of them, and fences that only close wait for none.
func TestConnectsTakeTurns(t *testing.T) {
	s := New(noSessions().Config)
	session := func() *Session { return &Session{s: s, connects: s.newShare()} }
	over := make(chan struct{})
	close(over)
	var ends []func()
	all := func(t *testing.T, a *Session, n int) {
		for range n {
			end, ok := a.turnToConnect(nil)
			require.True(t, ok)
			ends = append(ends, end)
		}
	}
	a, waits := session(), func() uint64 { return s.Limits.Read()["connects"] }
	all(t, a, ownConnectors)
	require.Zero(t, waits())
	_, ok := a.turnToConnect(over)
	require.False(t, ok, "the session has its share")
	require.EqualValues(t, 1, waits())
	for n := ownConnectors; n < connectors; n += ownConnectors {
		all(t, session(), ownConnectors)
	}
	_, ok = s.connecting.Take(over, nil)
	require.False(t, ok, "all are taken")
	endFence, ok := s.fencing.Take(nil, quota.NewPace(0, 1))
	require.True(t, ok)
	endFence()
	require.Zero(t, s.Limits.Read()["fences"], "a fence did not wait")
	for _, end := range ends {
		end()
	}
	all(t, session(), ownConnectors)
	require.EqualValues(t, 2, s.Limits.Read()[limits.List[limits.Connects].Name])
}
