package engine

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
)

// A rail fails while it has hundreds of operations in flight. The transfer's retries count the failure once, so the transfer
// ends well.
func TestRailDownManyInFlight(t *testing.T) {
	t.Parallel()
	const n, piece = 450, 130 << 10
	h := onRails(t, 2, fake.TCPCaps())
	p := h.pair(n*piece, "window_min", "64MiB", "rail_timeout", "1m", "chunk_max", "1MiB", "chunk_min", "512KiB")
	p.allUp(2)
	p.b.railNo(0).Stall()
	p.b.railNo(1).Stall()
	var l, r []Desc
	for i := range n { // backwards: no descriptors merge
		l, r = append(l, p.mine.desc((n-1-i)*piece, piece)), append(r, p.theirs.desc((n-1-i)*piece, piece))
	}
	p.mine.fill(1)
	x := p.a.prep(transfer.Write, l, r, "bob").post()
	most := 0
	until(t, "one rail has more than 210 operations in flight", func() bool {
		x.check()
		for i, l := range p.a.connected("bob").links() {
			if l.Core.Stats().InflightOps > 210 {
				most = i
				return true
			}
		}
		return false
	})
	p.a.railNo(most).Down(syscall.ENETDOWN)
	p.b.railNo(0).Release()
	p.b.railNo(1).Release()
	require.Equal(t, done, x.wait())
	p.same()
}
