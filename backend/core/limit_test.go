package core_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/provider"
	"gorail/backend/provider/fake"
)

// second gives both ends one more link over the same rail.
func second(t *testing.T, a, b *end) (la, lb core.Link) {
	var eps [2]provider.Endpoint
	for i, e := range []*end{a, b} {
		ep, err := e.rail.OpenEndpoint()
		require.NoError(t, err)
		eps[i] = ep
	}
	require.NoError(t, eps[0].Connect(eps[1].Addr()))
	require.NoError(t, eps[1].Connect(eps[0].Addr()))
	lb, err := b.sess.NewLink(0, 0, eps[1].Core(), 94, 93, core.Target, false)
	require.NoError(t, err)
	la, err = a.sess.NewLink(0, 0, eps[0].Core(), 93, 94, core.Initiator, false)
	require.NoError(t, err)
	t.Cleanup(func() {
		for i, l := range []core.Link{la, lb} {
			l.Stop()
			require.NoError(t, eps[i].Close())
			l.Reap()
			l.Fail(-3)
			l.Free()
		}
	})
	return la, lb
}

func (e *end) postOn(l core.Link, x core.Xfer) {
	x.Start()
	e.core.Post(x, []core.Link{l}, 0, false, nil)
}

// After a post of a small transfer on one link, large ones on another link keep little in flight if the same processor moves the bytes of both.
func TestSmallOnAnotherLink(t *testing.T) {
	const most = 192 << 10
	for _, same := range []bool{false, true} {
		caps := fake.TCPCaps()
		caps.ByProcessor = same
		a, b := ends(t, caps, map[string]string{"window_min": "1MiB"})
		link, _ := second(t, a, b)
		little := false
		for try := 0; try < 100 && !little; try++ { // a starved test may post the large one too late
			b.rail.Stall()
			small, large := a.xfer(b, core.Write, 1, 4<<10), a.xfer(b, core.Write, 16, 64<<10)
			a.postOn(link, small)
			a.postOn(a.link, large)
			until(t, "nothing posted", func() bool { return a.link.Stats().InflightBytes > 0 })
			little = a.link.Stats().InflightBytes <= most
			b.rail.Release()
			require.True(t, a.core.Wait(small, 10*time.Second))
			require.True(t, a.core.Wait(large, 10*time.Second))
			a.core.FreeXfer(small)
			a.core.FreeXfer(large)
			if !same {
				require.False(t, little)
			}
		}
		require.Equal(t, same, little)
	}
}
