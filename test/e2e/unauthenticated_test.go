package e2e

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"gorail/nixlapi"
	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// listening returns the addresses on which a process listens for TCP.
func listening(t testing.TB, pid int) (all []netip.AddrPort) {
	t.Helper()
	own := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	require.NoError(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
			own[strings.Trim(to, "socket:[]")] = true
		}
	}
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, name))
		require.NoError(t, err)
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			const state, listen, inode = 3, "0A", 9
			if w := strings.Fields(lines.Text()); len(w) > inode && w[state] == listen && own[w[inode]] {
				all = append(all, kernelAddr(t, w[1]))
			}
		}
	}
	require.NotEmpty(t, all)
	return all
}

// kernelAddr parses an address of /proc/net/tcp, such as "0100007F:1F90".
func kernelAddr(t testing.TB, text string) netip.AddrPort {
	t.Helper()
	host, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	require.NoError(t, err)
	for i := 0; i+4 <= len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	a, ok := netip.AddrFromSlice(b)
	require.True(t, ok)
	n, err := strconv.ParseUint(port, 16, 16)
	require.NoError(t, err)
	return netip.AddrPortFrom(a.Unmap(), uint16(n))
}

var (
	// A connection request of libfabric's tcp: a control header of version 3, and the sender's alleged listening port.
	intruderRequest = []byte{3, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x85, 0xcf, 0, 0, 0, 1}
	// A header of version 3: a message (op 0) of 16 bytes that acknowledges (op_data 2) a message that was never sent.
	intruderAck = []byte{3, 0, 0, 0, 2, 0, 16, 0, 16, 0, 0, 0, 0, 0, 0, 0}
)

// knock dials from an address and sends the bytes above, which once ended a process. It returns whether the dial succeeded.
func knock(from string, to netip.AddrPort) bool {
	d := net.Dialer{Timeout: 1500 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", to.String())
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = c.Write(intruderRequest)
	_, _ = c.Read(make([]byte, 64)) // libfabric's answer, or the control channel's challenge
	_, _ = c.Write(intruderAck)
	_, _ = c.Read(make([]byte, 64))
	return true
}

// ignored dials from an address and sends bytes that are no opening. The error says that the target answered, or kept the
// connection.
func ignored(from string, to netip.AddrPort) error {
	d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	for _, text := range [][]byte{nil, intruderRequest, bytes.Repeat(intruderRequest, 100)} {
		c, err := d.Dial("tcp", to.String())
		if err != nil {
			continue // not let in at all
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(testenv.Patient(5 * time.Second)))
		_, _ = c.Write(text)
		got, err := io.ReadAll(c)
		if len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("%s from %s: a stranger that sent %d bytes got %d bytes, and its connection ended with %w", to, from, len(text), len(got), err)
		}
	}
	return nil
}

// dataPorts returns the addresses on which the rails of a process listen.
func dataPorts(t testing.TB, pid int, firstControl, lastControl uint16) []netip.AddrPort {
	t.Helper()
	return slices.DeleteFunc(listening(t, pid), func(l netip.AddrPort) bool { return l.Port() >= firstControl && l.Port() <= lastControl })
}

// TestUnauthenticatedAtTheRails: when the peer is connected, the rails' ports of both processes give a stranger no byte, and end its
// connection, from the peer's address or from another.
func TestUnauthenticatedAtTheRails(t *testing.T) {
	t.Parallel()
	ours(t)
	p := pair(t, params("provider", "tcp", "control_port", "7300-7399", "devices", "lo", "log", "info"))
	a, b := p.buffers(1 << 20)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
	x.Do(limit)
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	for _, w := range []*worker.Agent{p.tgt, p.ini} {
		for _, from := range []string{"127.0.0.1", "127.0.0.5"} {
			for _, l := range dataPorts(t, w.Pid(), 7300, 7399) {
				require.NoError(t, ignored(from, l))
			}
			for _, l := range listening(t, w.Pid()) {
				_ = knock(from, l)
			}
		}
	}
	a.Fill(seedC)
	x.Do(limit)
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	b.Want(seedC)
	exit(t, p.ini, p.tgt)
}

// TestUnauthenticatedWhileAPeerConnects: a peer connects, and a firewall blocks its rails. Meanwhile the rails' ports give a stranger
// at another address no byte, and end its connection.
func TestUnauthenticatedWhileAPeerConnects(t *testing.T) {
	t.Parallel()
	const timeout = 4 * time.Second
	ha, hb := twoHosts(t)
	hb.blockAllBut("10.77.0.1/32", 7000, 7000) // alice's address; the stranger uses another address of the same host
	p := &pairOf{env: testenv.Need(t), ini: ha.start("alice", params("provider", "tcp", "connect_timeout", timeout.String(), "devices", "fast0")),
		tgt: hb.start("bob", params("provider", "tcp", "control_port", "7000", "connect_timeout", timeout.String(), "log", "info", "devices", "fast0"))}
	p.tgt.Polling(true)
	a, b := p.buffers(1 << 20)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	if s := x.Post(); s == nixlapi.InProgress {
		require.True(t, worker.Eventually(limit, func() bool { return len(dataPorts(t, p.tgt.Pid(), 7000, 7000)) > 0 }), "no rail listens")
		var problems []error
		ha.Aside(func() {
			require.NoError(t, netns.Set(ha.NS))
			for _, l := range dataPorts(t, p.tgt.Pid(), 7000, 7000) {
				problems = append(problems, ignored("10.77.1.1", l))
			}
		})
		require.NoError(t, errors.Join(problems...))
		require.True(t, x.Wait(limit).Failed())
	}
	exit(t, p.ini, p.tgt)
}

// socketScene is a target whose unix sockets a process of another user floods, and a process of further agents.
type socketScene struct {
	bob   *worker.Agent
	guest *worker.Worker
	n     int
}

func newSocketScene(t testing.TB) *socketScene {
	t.Helper()
	skip.UnlessRoot(t, "needs root to change users")
	s := &socketScene{bob: agentOf(t, "bob", asUser(honest, ""))}
	s.bob.Polling(true)
	o := asUser(honest, "")
	o.Env = testenv.Need(t)
	s.guest = worker.Start(t, o)
	return s
}

// begin floods the sockets. stop returns how many connections the kernel made.
func (s *socketScene) begin(t testing.TB, threads int) (stop func() int) {
	t.Helper()
	what := assault{User: stranger, Names: unixNames(t, s.bob.Pid()), Flood: threads}
	ends, until := io.Pipe()
	done := make(chan struct{})
	var l loot
	var failed error
	go func() {
		defer close(done)
		l, failed = attack(t, what, &syscall.SysProcAttr{}, "", ends)
	}()
	return func() int {
		_ = until.Close()
		<-done
		require.NoError(t, failed)
		return l.Named
	}
}

// dial makes an agent that reaches the target for the first time. It returns the time of the first transfer, and by which rails it went.
func (s *socketScene) dial(t testing.TB) (took time.Duration, rails string) {
	t.Helper()
	s.n++
	name := fmt.Sprintf("guest%d", s.n)
	g := agent(s.guest, testenv.Need(t), name, params("log", "info"))
	here, there := g.Buffer(4096, seedA), s.bob.Buffer(4096, seedB)
	g.Learn(s.bob)
	began := time.Now()
	g.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: here.All(), Remote: there.All(), Peer: "bob"}).Do(limit)
	took = time.Since(began)
	there.Want(seedA)
	require.True(t, worker.Eventually(limit, func() bool {
		for _, line := range logged(s.guest) {
			if holds(line, []string{"peer connected", "agent=" + name + " ", "session=initiator"}) {
				_, rails, _ = strings.Cut(line, "rails=")
				rails, _, _ = strings.Cut(rails, " ")
			}
		}
		return rails != ""
	}))
	require.NoError(t, g.Close())
	return took, rails
}

// TestFloodOfAnotherUser: a process of another user connects to an engine's unix sockets as often as it can. New peers of the host are
// connected over shared memory all the same.
func TestFloodOfAnotherUser(t *testing.T) {
	t.Parallel()
	s := newSocketScene(t)
	stop := s.begin(t, 1)
	for range 8 {
		took, rails := s.dial(t)
		assert.Equal(t, "sm/memory", rails)
		assert.Less(t, took, testenv.Patient(5*time.Second))
	}
	require.Positive(t, stop())
	require.NoError(t, s.bob.Exit())
}

// BenchmarkFloodOfAnotherUser reports the times of new peers while 0, 1 and 2 threads of another user connect to the target's sockets:
//
//	go test ./test/e2e -run NONE -bench FloodOfAnotherUser -benchtime 1x
func BenchmarkFloodOfAnotherUser(b *testing.B) {
	for _, threads := range []int{0, 1, 2} {
		b.Run(fmt.Sprint(threads), func(b *testing.B) {
			for b.Loop() { // what follows has its own number of rounds
			}
			s := newSocketScene(b)
			stop := func() int { return 0 }
			if threads > 0 {
				stop = s.begin(b, threads)
				time.Sleep(time.Second)
			}
			var took []time.Duration
			apart := 0
			for range 48 {
				d, rails := s.dial(b)
				took = append(took, d)
				if rails != "sm/memory" {
					apart++
				}
			}
			slices.Sort(took)
			ms := func(p int) float64 { return took[(len(took)-1)*p/100].Seconds() * 1e3 }
			b.ReportMetric(ms(50), "p50-ms")
			b.ReportMetric(ms(99), "p99-ms")
			b.ReportMetric(float64(apart), "by-network")
			b.ReportMetric(float64(stop()), "connections")
		})
	}
}
