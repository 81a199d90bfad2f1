package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
)

// A notification is stuck on one rail. The initiator stops sending later ones before the target holds too many. When that rail is
// fenced all arrive in order.
func TestStuckNotification(t *testing.T) {
	t.Parallel()
	const n, quiet = 70_000, 1000
	h := onRails(t, 2, fake.TCPCaps())
	p := h.pair(64<<10, "rail_timeout", "1m")
	p.allUp(2)
	notifLink, other := p.a.connected("bob").links()[0].Core, p.a.connected("bob").links()[1].Core
	p.b.railNo(1).Stall()
	var xs []*request
	for stuck := false; !stuck; { // small transfers take the rails in turn
		x := p.a.whole(transfer.Write, p.mine, p.theirs).post("first")
		xs = append(xs, x)
		until(h, "the transfer ends or its notification is on rail 1", func() bool {
			stuck = other.Tally().MessagesSent > 0
			return stuck || x.check() == done
		})
	}
	for i := range n {
		require.NoError(h, p.a.Notify("bob", fmt.Append(nil, i)))
	}
	last, same := uint64(0), 0
	until(h, "the notification link stops sending", func() bool {
		p.b.take()
		sent := notifLink.Tally().MessagesSent
		if same++; sent != last {
			last, same = sent, 0
		}
		return same == quiet
	})
	require.Less(h, last, uint64(n), "the initiator has sent all notifications")
	require.Positive(h, p.a.connected("bob").inside().Core.Queued())
	p.a.railChanged("fake1", false)
	p.b.railNo(1).Release()
	until(h, "all notifications arrive", func() bool { return len(p.b.take()) >= n+len(xs) })
	i := 0
	for _, s := range p.b.got {
		if s != "ann:first" {
			require.Equal(h, fmt.Sprint("ann:", i), s)
			i++
		}
	}
	require.Equal(h, n, i)
	for _, x := range xs {
		require.Equal(h, done, x.wait())
	}
}
