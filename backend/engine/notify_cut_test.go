package engine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	imitation "gorail/test/verbs"
)

// One of two rails goes down while notifications wait. If it is the rail of the notification link, later notifications take the
// other rail. All notifications arrive in order.
func TestNotifyOrderRailDown(t *testing.T) {
	t.Parallel()
	for device := range 2 {
		h := onVerbs(t, 2)
		a, b := h.agent("ann"), h.agent("bob", "notif_queue", "64KiB") // bob takes no notifications for now
		require.NoError(t, a.LoadConn("bob", b.Conn()))
		n := 0
		notify := func() {
			require.NoError(t, a.Notify("bob", fmt.Append(nil, n)))
			n++
		}
		told := func(what ...string) func() bool {
			return func() bool { return h.log.has(append(what, "agent=ann")...) }
		}
		notify()
		b.expect("ann:0")
		b.got = nil
		until(t, "both rails are in use", func() bool { return told("rail in use", "hca0")() && told("rail in use", "hca1")() })
		for range 5000 {
			notify()
		}
		h.lib.Event(device, imitation.PortErr, 1)
		for rests := told("rail down", fmt.Sprint("hca", device)); !rests(); {
			notify()
			require.Less(t, n, 100_000, "the rail does not go down")
		}
		until(t, "all notifications arrive", func() bool { return len(b.take()) >= n-1 })
		for i, s := range b.got {
			require.Equal(t, fmt.Sprint("ann:", i+1), s)
		}
		require.Len(t, b.got, n-1)
	}
}
