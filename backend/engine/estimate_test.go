package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/transfer"
)

// Before the first transfer the estimate follows from the links. There is an estimate for each size, and it grows with the
// size.
func TestEstimateBeforeFirst(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(8 << 20)
		last := time.Duration(0)
		for _, size := range []int{0, 1, 64 << 10, 1 << 20, 8 << 20} {
			x := p.a.prep(transfer.Write, []Desc{p.mine.desc(0, size)}, []Desc{p.theirs.desc(0, size)}, "bob")
			d, margin, err := p.a.Estimate(x.handle)
			require.NoError(t, err)
			require.GreaterOrEqual(t, d, max(last, time.Microsecond))
			require.GreaterOrEqual(t, margin, d, "no transfer has been measured")
			last = d
			x.release()
		}
		require.Less(t, last, time.Second)
		own := p.a.memory(4096)
		_, _, err := p.a.Estimate(p.a.prep(transfer.Read, []Desc{own.desc(0, 64)}, []Desc{own.desc(64, 64)}, "ann").handle)
		require.NoError(t, err, "the loopback session has not been used")
	})
}

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

// A transfer that was posted once and then released counts for the estimate. A transfer that was never posted does not.
func TestEstimateReleased(t *testing.T) {
	t.Parallel()
	p := onFake(t, fake.TCPCaps()).pair(8 << 20)
	asked := p.a.whole(transfer.Write, p.mine, p.theirs)
	x := p.a.whole(transfer.Write, p.mine, p.theirs)
	p.a.whole(transfer.Write, p.mine, p.theirs).release()
	guess, margin, err := p.a.Estimate(asked.handle)
	require.NoError(t, err)
	require.Greater(t, margin, guess)
	x.run()
	x.release()
	d, margin, err := p.a.Estimate(asked.handle)
	require.NoError(t, err)
	require.Less(t, margin, max(d, 20*time.Microsecond+1), "a transfer has been measured")
}
