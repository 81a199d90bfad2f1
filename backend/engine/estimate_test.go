package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
)

// The estimate before the first transfer uses the sum of the rails' speeds.
func TestEstimateLinkSpeed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mbps []uint64
		most time.Duration
	}{{[]uint64{1000}, 67109 * time.Microsecond}, {[]uint64{1000, 3000}, 16777 * time.Microsecond}, {[]uint64{100_000}, 3356 * time.Microsecond}} {
		h := onRails(t, len(c.mbps), fake.TCPCaps())
		for i := range h.links {
			h.links[i].Mbps = c.mbps[i]
		}
		p := h.pair(8 << 20)
		d, _, err := p.a.Estimate(p.a.whole(transfer.Write, p.mine, p.theirs).handle)
		require.NoError(t, err)
		require.InDelta(t, c.most.Seconds(), d.Seconds(), 100e-6, "8 MiB over %d Mbit/s, and the time of one message", c.mbps)
	}
}

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
