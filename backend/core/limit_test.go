package core_test

import (
	"bytes"
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

// A rail never has more than inflight_ops requests in flight, over any number of links. Messages still pass.
func TestInflightOps(t *testing.T) {
	tcp := fake.TCPCaps()
	tcp.Chained, tcp.IOVLimit = false, 1 // a stalled unsignaled WRITE would complete
	for name, caps := range map[string]fake.Caps{"ordered": tcp, "unordered": fake.EFACaps()} {
		t.Run(name, func(t *testing.T) {
			a, b := ends(t, caps, map[string]string{"inflight_ops": "4"})
			link, _ := second(t, a, b)
			for round := range 3 {
				op := []int{core.Write, core.Read}[round%2]
				pattern(a.mem, byte(round))
				pattern(b.mem, byte(round+50))
				b.rail.Stall()
				x, y := a.xfer(b, op, 50, 4<<10), a.xfer(b, op, 51, 4<<10)
				a.postOn(a.link, x)
				a.postOn(link, y)
				until(t, "nothing posted", func() bool { return a.link.Stats().InflightOps > 0 })
				a.core.Wait(y, time.Millisecond)
				require.EqualValues(t, 4, a.link.Stats().InflightOps, "the first link uses the whole limit")
				require.Zero(t, link.Stats().InflightOps)
				require.NoError(t, a.link.Notify([]byte("passes")))
				until(t, "the message is not posted", func() bool { return a.link.Stats().InflightOps == 5 })
				b.rail.Release()
				require.True(t, a.core.Wait(x, 10*time.Second))
				require.True(t, a.core.Wait(y, 10*time.Second))
				until(t, "notification", func() bool { return len(b.notes()) == 1 })
				require.True(t, bytes.Equal(a.mem[:51*4<<10], b.mem[:51*4<<10]))
				a.core.FreeXfer(x)
				a.core.FreeXfer(y)
			}
		})
	}
}

// Links of a rail at its limit take turns: a link with little work does not wait for a link with much work, in either
// order.
func TestInflightTurns(t *testing.T) {
	caps := fake.EFACaps()
	a, b := ends(t, caps, map[string]string{"inflight_ops": "2"})
	link, _ := second(t, a, b)
	for i, l := range [][2]core.Link{{a.link, link}, {link, a.link}} {
		a.rail.Script(fake.Script{Delay: 50, PerPoll: 1})
		big, small := a.xfer(b, core.Write, 4000, 1<<10), a.xfer(b, core.Write, 3, 4<<10)
		b.rail.Stall()
		a.postOn(l[0], big)
		until(t, "nothing posted", func() bool { return l[0].Stats().InflightOps == 2 })
		a.postOn(l[1], small)
		b.rail.Release()
		require.True(t, a.core.Wait(small, 10*time.Second))
		require.Less(t, big.Done(), uint64(4000<<10), "order %d", i)
		a.rail.Script(fake.Script{})
		require.True(t, a.core.Wait(big, 10*time.Second))
		a.core.FreeXfer(big)
		a.core.FreeXfer(small)
	}
}

// Operations that a fence has ended no longer count as in flight.
func TestInflightOpsRebind(t *testing.T) {
	a, b := ends(t, fake.TCPCaps(), map[string]string{"inflight_ops": "4"})
	for range 3 {
		b.rail.Stall()
		x := a.xfer(b, core.Read, 20, 64<<10)
		a.post(x)
		until(t, "nothing posted", func() bool { return a.link.Stats().InflightOps == 4 })
		fence(t, a, b)
		b.rail.Release()
		require.True(t, a.core.Wait(x, 10*time.Second))
		a.core.FreeXfer(x)
	}
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
