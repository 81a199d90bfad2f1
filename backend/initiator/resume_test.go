package initiator

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/failover"
	"gorail/backend/link"
	"gorail/backend/provider"
	"gorail/backend/wire"
)

// A FENCE has one answer, whatever a target sends.
func TestFencedOnce(t *testing.T) {
	r, l := peerOf(1, 1), &link.Link{FenceID: 7}
	l.Epoch, l.Phase = 3, failover.Fencing
	answer := func(id uint64, epoch uint32) bool { return r.awaited(l, wire.Fenced{ID: id, Epoch: epoch}) }
	require.False(t, answer(6, 3), "of an earlier FENCE")
	require.False(t, answer(7, 2))
	require.True(t, answer(7, 3))
	require.False(t, answer(7, 3), "again")
	require.False(t, answer(0, 3))
	l.FenceID, l.Phase = 8, failover.Probing
	require.False(t, answer(8, 3))
}

// An endpoint is connected only while its link waits for it.
func TestWaitsFor(t *testing.T) {
	ep, another := struct{ provider.Endpoint }{}, &struct{ provider.Endpoint }{}
	r, l := peerOf(1, 1), &link.Link{EP: ep}
	l.Epoch, l.Phase, r.state, r.links = 3, failover.Fencing, ready, []*link.Link{l}
	require.True(t, r.waitsFor(l, 3, ep))
	require.False(t, r.waitsFor(l, 2, ep))
	require.False(t, r.waitsFor(l, 3, another))
	l.Phase = failover.Probing
	require.False(t, r.waitsFor(l, 3, ep))
	l.Phase, r.state = failover.Fencing, suspended
	require.False(t, r.waitsFor(l, 3, ep))
	r.state, r.links = ready, nil
	require.False(t, r.waitsFor(l, 3, ep), "a link of an earlier connection")
}
