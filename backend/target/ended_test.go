package target

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/lifetime"
	"gorail/backend/peer"
	"gorail/backend/wire"
)

// A fence for a session that is over says so. An engine that is being destroyed answers nothing: its goodbye has the reason, and the peer's log
// names that instead.
func TestFenceOfAnEndedSession(t *testing.T) {
	t.Parallel()
	s := &Sessions{Config: Config{Life: &lifetime.Engine{}}}
	require.EqualError(t, s.Fence(&peer.In{}, wire.Fence{}), "the session has ended")
	s.Life.Close()
	require.NoError(t, s.Fence(&peer.In{}, wire.Fence{}))
}
