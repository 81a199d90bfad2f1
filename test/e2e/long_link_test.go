package e2e

import (
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// sysctl sets a value of net.ipv4 on this host.
func (h *host) sysctl(name, value string) {
	h.t.Helper()
	h.aside(func() {
		require.NoError(h.t, netns.Set(h.ns))
		require.NoError(h.t, os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0)) // of the thread's namespace
	})
}

// tunnel makes an interface whose packets go through the returned file.
func (h *host) tunnel(name string, addr *net.IPNet) (f *os.File) {
	h.t.Helper()
	h.aside(func() {
		require.NoError(h.t, netns.Set(h.ns))
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		require.NoError(h.t, err)
		r, err := unix.NewIfreq(name)
		require.NoError(h.t, err)
		r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		require.NoError(h.t, unix.IoctlIfreq(fd, unix.TUNSETIFF, r))
		f = os.NewFile(uintptr(fd), name)
	})
	require.NoError(h.t, h.nl.LinkSetMTU(h.link(name), tunnelMTU))
	h.up(name, addr)
	return f
}

const tunnelMTU = 9000 // fewer packets for this process to carry

// longLink joins two hosts by an interface "long0" with a delay each way. sch_netem is not in every kernel: this process carries
// the packets. bps limits the rate, with 20 ms of queue; 0: no limit.
func longLink(t *testing.T, delay time.Duration, bps float64) (a, b *host) {
	t.Helper()
	testenv.Need(t)
	a, b = newHost(t), newHost(t)
	addr := func(last byte) *net.IPNet {
		return &net.IPNet{IP: net.IPv4(10, 79, 0, last), Mask: net.CIDRMask(24, 32)}
	}
	fa, fb := a.tunnel("long0", addr(1)), b.tunnel("long0", addr(2))
	var all sync.WaitGroup
	all.Go(func() { carry(fa, fb, delay, bps) })
	all.Go(func() { carry(fb, fa, delay, bps) })
	t.Cleanup(func() {
		_ = fa.Close()
		_ = fb.Close()
		all.Wait()
	})
	a.reach(b, addr(2).IP)
	return a, b
}

// carry takes packets from one end to the other until an end is closed.
func carry(from, to *os.File, delay time.Duration, bps float64) {
	type packet struct {
		at   time.Time
		data []byte
	}
	const queue = 20 * time.Millisecond
	way := make(chan packet, 4096)
	go func() {
		defer close(way)
		var free time.Time // when the wire has sent all before
		for {
			buf := make([]byte, tunnelMTU)
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			now := time.Now()
			if free.Before(now) {
				free = now
			}
			if free.Sub(now) > queue {
				continue
			}
			if bps > 0 {
				free = free.Add(time.Duration(float64(n*8) / bps * 1e9))
			}
			way <- packet{free.Add(delay), buf[:n]}
		}
	}()
	for p := range way {
		time.Sleep(time.Until(p.at))
		_, _ = to.Write(p.data) // fails when the test ends
	}
}

// TestLongLink: over 40 ms the kernel's limits of buffers are too small, at either end. The sending end's log names the host and
// the sysctl, once. A link that is full and large enough buffers cause no warning.
func TestLongLink(t *testing.T) {
	t.Parallel()
	ours(t)
	const small, large = "4096 65536 524288", "4096 131072 16777216"
	for _, c := range []struct {
		name, rmem, wmem string
		bps              float64
		says             []string
	}{
		{"receive", small, large, 0, []string{"the receive buffer of 10.79.0.2 limits", "tcp/long0 (10.79.0.1)", "on the peer's host set sysctl -w net.ipv4.tcp_rmem=", "4096 65536 "}},
		{"send", large, small, 0, []string{"the send buffer of this host limits", "10.79.0.2", "on this host set sysctl -w net.ipv4.tcp_wmem=", "4096 65536 "}},
		{"full", large, large, 50e6, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ha, hb := longLink(t, 20*time.Millisecond, c.bps)
			for _, h := range []*host{ha, hb} {
				h.sysctl("tcp_rmem", c.rmem)
				h.sysctl("tcp_wmem", c.wmem)
			}
			p := onRails(t, ha, hb, "devices", "long0", "tcp_congestion", "reno")
			a, b := p.buffers(4 << 20)
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
			warned := func() bool { return len(warnings(p.ini.Worker, "limits a connection")) > 0 }
			end := time.Now().Add(limit)
			if c.says == nil {
				end = time.Now().Add(5 * time.Second) // six looks
			}
			for time.Now().Before(end) && !warned() {
				x.Do(limit)
			}
			if c.says == nil {
				require.False(t, warned(), p.ini.Output())
				return
			}
			says(t, p.ini.Worker, append(c.says, "level=WARN", "rail=tcp/long0")...)
			for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); {
				x.Do(limit)
			}
			require.Len(t, warnings(p.ini.Worker, "limits a connection"), 1, p.ini.Output())
			require.Empty(t, warnings(p.tgt.Worker, "limits a connection"))
		})
	}
}

// warnings returns the lines of a process's log that hold a text.
func warnings(w *worker.Worker, text string) (lines []string) {
	for _, line := range logged(w) {
		if holds(line, []string{text}) {
			lines = append(lines, line)
		}
	}
	return lines
}
