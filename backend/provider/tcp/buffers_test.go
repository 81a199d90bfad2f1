package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestBufferRule: a buffer that keeps a connection from sending for most of its time limits it only if the bytes of a least round
// trip come near the buffer, in two looks in a row.
func TestBufferRule(t *testing.T) {
	t.Parallel()
	const ms, mib = 1000, 1 << 20
	most := sysctls{rmem: [3]uint64{4096, 131072, 6 * mib}, wmem: [3]uint64{4096, 16384, 4 * mib}}
	for _, c := range []struct {
		name              string
		busy, rwnd, snd   uint64 // microseconds of a second
		rate              uint64 // bytes a second of busy time
		rtt, window, send uint64
		want              int
	}{
		{"the peer's window on a long link", 1e6, 9e5, 0, 3 * mib * 50, 20 * ms, 3 * mib, 2 * mib, peersBuffer},
		{"the same with pauses", 2e5, 15e4, 0, 3 * mib * 50, 20 * ms, 3 * mib, 2 * mib, peersBuffer},
		{"hardly any traffic", 5e4, 45e3, 0, 3 * mib * 50, 20 * ms, 3 * mib, 2 * mib, noBuffer},
		{"a receiver that is slow: its window is shut, but was open", 1e6, 1e6, 0, mib * 50, 20 * ms, 3 * mib, 2 * mib, noBuffer},
		{"a receiver that is slow: its window never opened", 1e6, 1e6, 0, 10 * mib, 20 * ms, 200 << 10, 2 * mib, noBuffer},
		{"a window that is shut on a fast network", 1e6, 9e5, 0, 3000 * mib, 100, 3 * mib, 2 * mib, noBuffer},
		{"our buffer on a long link", 1e6, 0, 9e5, 2 * mib * 50, 20 * ms, 3 * mib, 4 * mib, ownBuffer},
		{"our buffer may still grow", 1e6, 0, 9e5, 2 * mib * 50, 20 * ms, 3 * mib, 2 * mib, noBuffer},
		{"our buffer is full, because the link is", 1e6, 0, 9e5, 100 * mib, ms, 3 * mib, 4 * mib, noBuffer},
		{"congestion control", 1e6, 9e4, 9e4, 3 * mib * 50, 20 * ms, 3 * mib, 4 * mib, noBuffer},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f flow
			i := unix.TCPInfo{Snd_wnd: uint32(c.window), Min_rtt: uint32(c.rtt), Delivery_rate: c.rate}
			look := func(busy, rwnd, snd uint64) int {
				i.Busy_time, i.Rwnd_limited, i.Sndbuf_limited = i.Busy_time+busy, i.Rwnd_limited+rwnd, i.Sndbuf_limited+snd
				return f.look(&i, c.send, most)
			}
			require.Equal(t, noBuffer, look(c.busy, c.rwnd, c.snd), "the first look")
			require.Equal(t, c.want, look(c.busy, c.rwnd, c.snd))
			require.Equal(t, noBuffer, look(1000, 0, 0), "a pause")
			require.Equal(t, c.want, look(c.busy, c.rwnd, c.snd))
			require.Equal(t, noBuffer, look(c.busy, 0, 0))
			require.Equal(t, noBuffer, look(c.busy, c.rwnd, c.snd), "only one look since")
		})
	}
}
