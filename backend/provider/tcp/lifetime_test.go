package tcp

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/access"
	"gorail/backend/provider"
	"gorail/backend/trust"
)

// TestClosedRail: a closed rail gives no endpoint and no region, also if they are asked for while it closes.
func TestClosedRail(t *testing.T) {
	t.Parallel()
	for range 20 {
		r := openTuned(t, nil)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if e, err := r.OpenEndpoint(); err == nil {
					_ = e.Close()
				}
				if m, err := r.Register(4096, 4096, 0, access.Both); err == nil {
					_ = m.Close()
				}
			})
		}
		all.Go(func() { _ = r.Close() }) // EBUSY, or success
		all.Wait()
		require.NoError(t, r.Close())
		_, err := r.OpenEndpoint()
		require.ErrorIs(t, err, provider.ErrEndpoint)
		_, err = r.Register(4096, 4096, 0, access.Both)
		require.ErrorIs(t, err, provider.ErrRegister)
	}
}

// TestCloseWhileConnecting: an endpoint that is closed during Connect waits for nobody afterwards.
func TestCloseWhileConnecting(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	for range 1000 {
		ep, err := n.rail.OpenEndpoint()
		require.NoError(t, err)
		e := ep.(*endpoint)
		e.Secure(security(false))
		var all sync.WaitGroup
		all.Go(func() { _ = e.Connect(e.Addr()) }) // or it is closed
		all.Go(func() { _ = e.Close() })
		all.Wait()
	}
	require.Zero(t, n.rail.at.Load().listener.Waiting())
}

// TestSecretsAreWiped: both ends derive the secret of their link when they need it, and wipe it then.
func TestSecretsAreWiped(t *testing.T) {
	t.Parallel()
	n := newNode(t, nodeMem, nil)
	var mu sync.Mutex
	var secrets []*trust.LinkSecret
	open := func(initiator bool) provider.Endpoint {
		e, err := n.rail.OpenEndpoint()
		require.NoError(t, err)
		s := security(initiator)
		s.Link = func(k trust.Ticket) *trust.LinkSecret {
			mu.Lock()
			defer mu.Unlock()
			secrets = append(secrets, linkOf(k))
			return secrets[len(secrets)-1]
		}
		e.(provider.Secured).Secure(s)
		return e
	}
	a, b, alone := open(true), open(false), open(false)
	require.NoError(t, alone.Connect(a.Addr()))
	require.NoError(t, alone.Close())
	require.NoError(t, a.Connect(b.Addr()))
	require.NoError(t, b.Connect(a.Addr()))
	id := n.id()
	require.NoError(t, n.d.Send(a.Core(), id, n.mem[:8], nil))
	n.until("a message", func() bool { _, ok := n.done[id]; return ok })
	require.Zero(t, n.done[id].Err)
	for _, e := range []provider.Endpoint{a, b} {
		require.NoError(t, e.Close())
	}
	n.rail.dials.Wait()
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, secrets, 2)
	for _, s := range secrets {
		require.Equal(t, trust.LinkSecret{}, *s)
	}
}
