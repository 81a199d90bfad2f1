package e2e

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// wan is a long link: two hosts with a tap device each, and this process as the wire. It needs no netem in the kernel.
type wan struct {
	rtt     time.Duration
	mbit    float64
	mtu     int
	queue   time.Duration // of packets that wait for the wire; others are dropped
	lost    float64       // the part of packets that the wire loses
	late    float64       // the part of packets that others overtake
	control string        // congestion control of both hosts
}

const wanName = "wan0"

// packet is one that the wire carries.
type packet struct {
	at   time.Time // when it arrives
	data []byte
}

func (w wan) hosts(t testing.TB) (a, b *host) {
	t.Helper()
	a, b = newHost(t), newHost(t)
	b.Reboot("00000000-1111-2222-3333-444444444444")
	var taps [2]*os.File
	var fails error
	for i, h := range []*host{a, b} {
		h.Aside(func() {
			require.NoError(t, netns.Set(h.NS))
			taps[i] = w.tap(t)
			for name, value := range map[string]string{"tcp_congestion_control": w.control, "tcp_no_metrics_save": "1"} {
				if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv4", name), []byte(value), 0o644); err != nil {
					fails = fmt.Errorf("%s=%s: %w", name, value, err) // the kernel lacks it, or tcp_allowed_congestion_control
				}
			}
		})
		if fails != nil {
			skip.OrFail(t, fails)
		}
		h.Up(wanName, &net.IPNet{IP: net.IPv4(10, 79, 0, byte(1+i)), Mask: net.CIDRMask(24, 32)})
		require.NoError(t, h.NL.LinkSetMTU(h.Link(wanName), w.mtu))
		require.NoError(t, h.NL.LinkSetTxQLen(h.Link(wanName), 4000))
	}
	var ends sync.WaitGroup
	for i := range taps {
		ends.Go(func() { w.carry(taps[i], taps[1-i], rand.New(rand.NewPCG(uint64(i), 1))) })
	}
	t.Cleanup(func() {
		for _, f := range taps {
			_ = f.Close()
		}
		ends.Wait()
	})
	a.Reach(b.Host, net.IPv4(10, 79, 0, 2))
	return a, b
}

// tap opens a device in the thread's namespace. Implements TUNSETIFF.
func (w wan) tap(t testing.TB) *os.File {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		skip.OrFail(t, fmt.Errorf("/dev/net/tun: %w", err))
	}
	r, err := unix.NewIfreq(wanName)
	require.NoError(t, err)
	r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	require.NoError(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, r))
	return os.NewFile(uintptr(fd), wanName)
}

// carry moves packets one way until a device is closed.
func (w wan) carry(from, to *os.File, rnd *rand.Rand) {
	lanes := [2]chan packet{make(chan packet, 16<<10), make(chan packet, 16<<10)} // the second has those that come late
	var out sync.WaitGroup
	for _, lane := range lanes {
		out.Go(func() {
			for p := range lane {
				time.Sleep(time.Until(p.at))
				_, _ = to.Write(p.data) // the device may be closed
			}
		})
	}
	free := time.Now() // when the wire has sent what it has
	buf := make([]byte, w.mtu+64)
	for {
		n, err := from.Read(buf)
		if errors.Is(err, unix.EIO) { // the device is not up yet
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			break
		}
		now := time.Now()
		if free.Before(now) {
			free = now
		}
		if rnd.Float64() < w.lost || free.Sub(now) > w.queue {
			continue
		}
		free = free.Add(time.Duration(float64(n) * 8e3 / w.mbit))
		p := packet{free.Add(w.rtt / 2), append([]byte(nil), buf[:n]...)}
		lane := lanes[0]
		if rnd.Float64() < w.late {
			p.at, lane = p.at.Add(w.rtt/8), lanes[1]
		}
		select {
		case lane <- p:
		default:
		}
	}
	for _, lane := range lanes {
		close(lane)
	}
	out.Wait()
}

// plain is the rate of a loop that sends over one socket, after its first second, in Mbit/s.
func (w wan) plain(a, b *host) (mbit float64) {
	var l net.Listener
	var c net.Conn
	var err error
	b.Aside(func() {
		require.NoError(b.T, netns.Set(b.NS))
		l, err = net.Listen("tcp", "10.79.0.2:0")
		require.NoError(b.T, err)
	})
	defer l.Close()
	a.Aside(func() {
		require.NoError(a.T, netns.Set(a.NS))
		c, err = net.Dial("tcp", l.Addr().String())
		require.NoError(a.T, err)
	})
	in, err := l.Accept()
	require.NoError(b.T, err)
	defer in.Close()
	go func() {
		defer c.Close()
		for data := make([]byte, 1<<20); ; {
			if _, err := c.Write(data); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 1<<20)
	take := func(d time.Duration) (n int) {
		for end := time.Now().Add(d); time.Now().Before(end); {
			k, err := in.Read(buf)
			require.NoError(b.T, err)
			n += k
		}
		return n
	}
	take(time.Second)
	began := time.Now()
	return float64(take(3*time.Second)) * 8 / time.Since(began).Seconds() / 1e6
}

// on starts an agent on each host. The target polls.
func (w wan) on(t testing.TB, a, b *host, opts ...string) *pairOf {
	t.Helper()
	env := testenv.Need(t)
	opts = append(opts, "devices", wanName) // tunnels are used by name alone
	p := &pairOf{env: env, ini: a.start("alice", params(opts...)), tgt: b.start("bob", params(opts...))}
	p.tgt.Polling(true)
	return p
}

// TestLongLinkBytes: delay, loss and packets that come late change no byte, and each notification comes once.
func TestLongLinkBytes(t *testing.T) {
	t.Parallel()
	ours(t)
	size, rounds := uint64(4<<20), 2
	if !testing.Short() {
		size, rounds = 16<<20, 8
	}
	for _, control := range []string{"bbr", "reno"} {
		t.Run(control, func(t *testing.T) {
			t.Parallel()
			w := wan{rtt: 10 * time.Millisecond, mbit: 1000, mtu: 9000, queue: 20 * time.Millisecond, lost: 0.005, late: 0.02, control: control}
			ha, hb := w.hosts(t)
			p := w.on(t, ha, hb)
			a, b := p.buffers(size)
			for i := range rounds {
				a.Fill(uint64(100 + i))
				note := worker.Seq("w", i)
				p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: note}).Do(limit)
				require.Equal(t, []nixlapi.Notif{{From: "alice", Msg: note}}, p.tgt.WaitNotifs(1, limit))
				b.Want(uint64(100 + i))
				b.Fill(uint64(200 + i))
				p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
				a.Want(uint64(200 + i))
			}
			for _, text := range []string{p.ini.Output(), p.tgt.Output()} {
				require.NotContains(t, text, "level=WARN")
			}
			exit(t, p.ini, p.tgt)
		})
	}
}

// BenchmarkLongLink posts four WRITEs of 128 MiB over a link of 1 Gbit/s with 20 ms of round trip. The rate is that after the first
// second, as a part of the link's. x-link-plain is that of a loop over one socket. Nobody polls meanwhile: the wire needs a core.
//
//	go test ./test/e2e -run NONE -bench LongLink -benchtime 1x
func BenchmarkLongLink(b *testing.B) {
	const size, flight = 128 << 20, 4
	for _, c := range []struct {
		control string
		lost    float64
		mtu     int
	}{{"bbr", 0, 9000}, {"cubic", 0, 9000}, {"bbr", 0, 1500}, {"bbr", 0.001, 9000}, {"bbr", 0.001, 1500}} {
		b.Run(fmt.Sprintf("%s/lost=%v/mtu=%d", c.control, c.lost, c.mtu), func(b *testing.B) {
			w := wan{rtt: 20 * time.Millisecond, mbit: 1000, mtu: c.mtu, queue: 20 * time.Millisecond, lost: c.lost, control: c.control}
			ha, hb := w.hosts(b)
			plain := w.plain(ha, hb)
			p := w.on(b, ha, hb)
			p.tgt.PollEvery(20 * time.Millisecond)
			mine, theirs := p.buffers(flight * size)
			var xs []*worker.Xfer
			for i := range uint64(flight) {
				xs = append(xs, p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: mine.Span(i*size, size), Remote: theirs.Span(i*size, size), Peer: "bob"}))
			}
			got := func() uint64 { return hb.Link(wanName).Attrs().Statistics.RxBytes }
			var rate float64
			for range b.N {
				before := got()
				for _, x := range xs {
					require.False(b, x.Post().Failed())
				}
				time.Sleep(time.Second)
				first, began := got()-before, time.Now()
				time.Sleep(3 * time.Second) // it takes 4.3 s at least
				for _, x := range xs {
					require.Equal(b, nixlapi.Success, x.Wait(long))
				}
				rate += float64(flight*size-first) * 8 / time.Since(began).Seconds() / 1e6 / float64(b.N)
			}
			b.ReportMetric(rate, "Mbit/s")
			b.ReportMetric(rate/w.mbit, "x-link")
			b.ReportMetric(plain/w.mbit, "x-link-plain")
			b.ReportMetric(0, "ns/op")
			theirs.Want(seedA)
			exit(b, p.ini, p.tgt)
		})
	}
}

// sysctl sets a value of net on this host.
func (h *host) sysctl(name, value string) {
	h.T.Helper()
	h.Aside(func() {
		require.NoError(h.T, netns.Set(h.NS))
		require.NoError(h.T, os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)) // of the thread's namespace
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
