package e2e

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"gorail/nixlapi"
	"gorail/test/worker"
)

// sysctl sets a value of net on this host.
func (h *host) sysctl(name, value string) {
	h.t.Helper()
	h.aside(func() {
		require.NoError(h.t, netns.Set(h.ns))
		require.NoError(h.t, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)) // of the thread's namespace
	})
}

// TestLongLink: over 40 ms the kernel's limits of buffers are too small, at either end. The sending end's log names the host and
// the sysctl, once. A link that is full and large enough buffers cause no warning.
func TestLongLink(t *testing.T) {
	t.Parallel()
	ours(t)
	const small, large = "4096 65536 524288", "4096 131072 16777216"
	for _, c := range []struct {
		name, rmem, wmem string
		mbit             float64
		says             []string
	}{
		{"receive", small, large, 1e6, []string{"the receive buffer of 10.79.0.2 limits", "tcp/wan0 (10.79.0.1)", "on the peer's host set sysctl -w net.ipv4.tcp_rmem=", "4096 65536 "}},
		{"send", large, small, 1e6, []string{"the send buffer of this host limits", "10.79.0.2", "on this host set sysctl -w net.ipv4.tcp_wmem=", "4096 65536 "}},
		{"full", large, large, 50, nil},
	}[:rounds(2, 3)] {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := wan{rtt: 40 * time.Millisecond, mbit: c.mbit, mtu: 9000, queue: 20 * time.Millisecond, control: "reno"}
			ha, hb := w.hosts(t)
			for _, h := range []*host{ha, hb} {
				h.sysctl("ipv4/tcp_rmem", c.rmem)
				h.sysctl("ipv4/tcp_wmem", c.wmem)
			}
			p := w.on(t, ha, hb)
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
			says(t, p.ini.Worker, append(c.says, "level=WARN", "rail=tcp/wan0")...)
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
