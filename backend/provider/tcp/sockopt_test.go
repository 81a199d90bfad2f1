package tcp

import (
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/test/skip"
)

// sysctl reads words from net.ipv4.
func sysctl(t *testing.T, name string) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/net/ipv4/" + name)
	require.NoError(t, err)
	return strings.Fields(string(b))
}

// tuned makes a connection of a rail with these options, moves a message, and returns what `read` reads from both ends.
func tuned(t *testing.T, o Options, read func(fd int)) {
	t.Helper()
	var mu sync.Mutex
	ends := 0
	o.tune = func(fd int) {
		mu.Lock()
		defer mu.Unlock()
		read(fd)
		ends++
	}
	n := newNodeOf(t, nodeMem, o)
	a, b := n.connectTo(n)
	id := n.id()
	require.NoError(t, n.d.Send(a.Core(), id, n.mem[:8], nil))
	n.until("a message", func() bool { _, ok := n.done[id]; return ok })
	require.Zero(t, n.done[id].Err)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 2, ends)
}

// connectTo makes a connection to another rail, or to its own.
func (n *node) connectTo(m *node) (a, b provider.Endpoint) {
	n.t.Helper()
	open := func(on *node, initiator bool) provider.Endpoint {
		e, err := on.rail.OpenEndpoint()
		require.NoError(n.t, err)
		e.(provider.Listener).Secure(security(initiator))
		return e
	}
	a, b = open(n, true), open(m, false)
	require.NoError(n.t, a.Connect(b.Addr()))
	require.NoError(n.t, b.Connect(a.Addr()))
	return a, b
}

// TestCongestion: both ends of a connection send by the congestion control of the option.
func TestCongestion(t *testing.T) {
	t.Parallel()
	own := sysctl(t, "tcp_congestion_control")[0]
	for _, name := range sysctl(t, "tcp_allowed_congestion_control") {
		if name == own {
			continue
		}
		tuned(t, Options{Congestion: name}, func(fd int) {
			got, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
			require.NoError(t, err)
			require.Equal(t, name, got)
		})
		return
	}
	skip.OrFail(t, errors.New("this process may use one algorithm of congestion control only"))
}

// unprivileged runs f on a thread without CAP_NET_ADMIN.
func unprivileged(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends
		head, caps := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
		err := unix.Capget(&head, &caps[0])
		caps[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err == nil {
			err = unix.Capset(&head, &caps[0])
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	require.NoError(t, <-done)
}

// TestCongestionRefused: the error says what this kernel has and what this process may use.
func TestCongestionRefused(t *testing.T) {
	t.Parallel()
	discover := func(name string) error {
		_, err := New(Options{Congestion: name}).Discover(context.Background(), provider.Filter{Devices: []string{"lo"}})
		return err
	}
	there, allowed := sysctl(t, "tcp_available_congestion_control"), sysctl(t, "tcp_allowed_congestion_control")
	err := discover("nosuch")
	require.ErrorIs(t, err, provider.ErrUnusable)
	require.ErrorIs(t, err, unix.ENOENT)
	for _, text := range []string{"tcp_congestion=nosuch", strings.Join(there, ", "), strings.Join(allowed, ", ")} {
		require.ErrorContains(t, err, text)
	}
	for _, name := range there {
		if slices.Contains(allowed, name) {
			require.NoError(t, discover(name))
			continue
		}
		unprivileged(t, func() { err = discover(name) })
		require.ErrorIs(t, err, provider.ErrUnusable)
		require.ErrorIs(t, err, unix.EPERM)
		for _, text := range []string{"tcp_congestion=" + name, "may use " + strings.Join(allowed, ", "), "tcp_allowed_congestion_control", "CAP_NET_ADMIN"} {
			require.ErrorContains(t, err, text)
		}
	}
}

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
				return f.look(&i, c.send, func() sysctls { return most })
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
