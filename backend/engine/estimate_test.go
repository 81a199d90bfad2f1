package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/transfer"
	"gorail/test/fake"
)

// The estimate follows the measured transfers.
func TestEstimateMeasured(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(8<<20, "window_max", "256KiB")
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	guess, _, err := p.a.Estimate(x.handle)
	require.NoError(t, err)
	p.a.rail().Script(fake.Script{Delay: 50})
	until(t, "the estimate is a measured one", func() bool {
		x.run()
		d, margin, err := p.a.Estimate(x.handle)
		return err == nil && d != guess && margin < d
	})
}
