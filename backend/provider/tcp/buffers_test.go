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

// TestSendBufferFull: bytes in flight that fill the send buffer show a limit where the kernel has counted no time.
func TestSendBufferFull(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                          string
		unacked, cwnd, window, unsent uint32
		full                          bool
	}{
		{"full", 400, 1000, 3 << 20, 0, true},
		{"congestion control is the limit", 400, 401, 3 << 20, 0, false},
		{"the window is the limit", 400, 1000, 600_000, 0, false},
		{"there is more to send", 400, 1000, 3 << 20, 500_000, false},
		{"little in flight", 100, 1000, 3 << 20, 0, false},
	} {
		i := unix.TCPInfo{Unacked: c.unacked, Snd_mss: 1448, Snd_cwnd: c.cwnd, Snd_wnd: c.window, Notsent_bytes: c.unsent}
		require.Equal(t, c.full, full(&i, 1<<20), c.name)
	}
}

// TestEnough: the size that a warning proposes holds two round trips at the device's speed.
func TestEnough(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 24<<20, enough(6<<20, 20_000, 0))
	require.EqualValues(t, 477<<20, enough(6<<20, 20_000, 100_000)) // 500 MB
	require.EqualValues(t, 12<<20, enough(6<<20, 100, 100_000))
	require.EqualValues(t, 1<<31-1, enough(1<<30, 20_000, 100_000))
}
