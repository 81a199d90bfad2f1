package engine

import (
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	imitation "gorail/test/verbs"
)

// bothUse waits until both sessions of a pair use n links.
func (h *harness) bothUse(n int) {
	for _, peer := range []string{"ann", "bob"} {
		until(h, "all links to "+peer+" are in use", func() bool { return h.log.count(`"rail in use" peer=`+peer) >= n })
	}
}

// The kernel finds no neighbour for the links of three of four rails. Then the last rail's connections break. Its links connect all the
// same: neither the connects of the others nor the turns of fences hold them up.
func TestVerbsFenceOfLoneRail(t *testing.T) {
	t.Parallel()
	const links = 8
	h := onVerbs(t, 4)
	p := h.pair(16<<20, "qps_per_rail", fmt.Sprint(links))
	p.a.whole(transfer.Write, p.mine, p.theirs).run("first")
	p.b.expect("ann:first")
	h.bothUse(4 * links)
	h.lib.Set("hold_rtr", 7)
	t.Cleanup(func() { h.lib.Set("hold_rtr", 0) })
	for device := range 3 {
		h.lib.Event(device, imitation.PortErr, 1)
	}
	until(t, "the links of three rails in both sessions are being connected", func() bool { return h.lib.Count("held") == 2*3*links })
	p.mine.b[7]++
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	x.post("second")
	h.lib.Break()
	require.Equal(t, done, x.wait())
	p.b.expect("ann:second")
	p.same()
	require.Positive(t, h.lib.Count("held"))
}

var fencedRail = regexp.MustCompile(`"fencing a link" peer=bob rail=verbs/hca(\d)`)

// Two links fail at the same time, and the kernel finds no neighbour for either. The first one's FENCE is answered while the second does not
// work either. When the second is renewed, it has the work of the first, whose endpoints are still being connected. The log says that
// the first rail is down.
//
// On a starved host a queue pair may not be flushed in time. Then closing waits for ibv_destroy_qp, which this test holds up, and it tries again.
func TestVerbsFenceHandsOverLate(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]int{"WRITE": transfer.Write, "READ": transfer.Read} {
		t.Run(name, func(t *testing.T) {
			for range 30 {
				if handsOverLate(t, op) {
					return
				}
			}
			t.Fatal("both links were never fenced at the same time")
		})
	}
}

// handsOverLate returns false if the two links were not fenced while ibv_destroy_qp was held up, or the first one's connections did not last as
// long as the work.
func handsOverLate(t *testing.T, op int) bool {
	h := onVerbs(t, 2)
	p := h.pair(16 << 20)
	p.a.whole(op, p.mine, p.theirs).run("first")
	p.b.expect("ann:first")
	h.bothUse(2)
	h.lib.Set("hold_rtr", 3)
	t.Cleanup(func() { h.lib.Set("hold_rtr", 0) })
	p.mine.b[7]++
	p.theirs.b[9]++
	x := p.a.whole(op, p.mine, p.theirs)
	h.lib.Set("delay", 300) // both links have requests when they break
	x.post("second")
	h.lib.Set("hold_destroy", 1) // the peer answers after 5 ms: both links have failed by then
	t.Cleanup(func() { h.lib.Set("hold_destroy", 0) })
	h.lib.Set("delay", 0) // on a starved host closing polls too seldom to flush delayed requests in time
	h.lib.Break()
	both := within(2*time.Second, func() bool { return h.log.count(`"fencing a link" peer=bob`) == 2 })
	h.lib.Set("hold_destroy", 0)
	if !both {
		h.lib.Set("hold_rtr", 0)
		require.Equal(t, done, x.wait())
		return false
	}
	until(t, "both links of both sessions are being connected", func() bool { return h.lib.Count("held") == 4 })
	first := fencedRail.FindStringSubmatch(h.log.String())
	require.NotNil(t, first)
	h.lib.Set("hold_rtr", 1<<(first[1][0]-'0'))
	require.Equal(t, done, x.wait())
	p.b.expect("ann:second")
	p.same()
	late := h.lib.Count("held") > 0 // else the first link's connections were given up before the work was done: on a starved host
	h.lib.Set("hold_rtr", 0)
	if !late {
		return false
	}
	until(t, "the first rail is in use again", func() bool { return h.log.count(`"rail in use" peer=bob`) > 2 })
	require.Equal(t, 1, h.log.count(`"rail down; other rails carry its work" peer=bob`), "one line for a failure")
	return true
}
