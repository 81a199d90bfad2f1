package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"gorail/backend/wire"
	"gorail/nixlapi"
	"gorail/test/tcpmodel"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// flood is a kind of attack: connections without metadata or token.
type flood struct {
	name    string
	says    string // what each sends; "": nothing
	sources int
	v6      bool // addresses of one /64
	peer    bool // the honest peer's own address
	rate    int  // connections a second, to each port
	cookies string
}

var floods = []flood{
	{name: "64 sources", sources: 64, rate: 200},
	{name: "70 addresses of one 64", sources: 70, v6: true, rate: 200},
	{name: "9 sources", sources: 9, rate: 300},
	{name: "the peer's address", peer: true, rate: 300},
	{name: "12000 sources", sources: 12000, rate: 2500},
	{name: "12000 sources without SYN cookies", sources: 12000, rate: 2500, cookies: "0"},
	{name: "garbage of 4096 sources", sources: 4096, rate: 2500, says: garbage},
	{name: "parts of openings of 12000 sources", sources: 12000, rate: 2500, says: part},
	{name: "openings without proof of 16 sources", sources: 16, rate: 2500, says: whole},
}

// What a flood's connections say.
const (
	garbage = "garbage"
	part    = "part"  // of a right opening
	whole   = "whole" // a right form, with a wrong proof
)

// text is what a connection to the control port or the data port sends.
func (f flood) text(data bool) []byte {
	b := make([]byte, 200)
	_, _ = rand.Read(b)
	var open bytes.Buffer
	_ = wire.WriteFrame(&open, &wire.Open{Version: wire.Version}) // writes to memory
	const head = "gorail\x00T\x02\x00"
	switch {
	case f.says == part && data:
		return []byte(head)
	case f.says == part:
		return open.Bytes()[:2]
	case f.says == whole && data:
		return append(append([]byte(head), 0, 0, 0, 0, 0, 0), b[:tcpmodel.OpeningLen-len(head)-6]...)
	case f.says == whole:
		return open.Bytes()
	}
	return b
}

// floodHosts are two hosts with a wire. The first has, besides its address, all those of 10.9.0.0/16 and of an IPv6 /64.
func floodHosts(t testing.TB, f flood) (a, b *host, at string) {
	t.Helper()
	a, b = newHost(t), newHost(t)
	cidr := func(text string) *net.IPNet {
		ip, n, err := net.ParseCIDR(text)
		require.NoError(t, err)
		n.IP = ip
		return n
	}
	here, there, network := cidr("10.77.0.1/24"), cidr("10.77.0.2/24"), cidr("10.9.0.0/16")
	if f.v6 {
		here, there, network = cidr("2001:db8:77::1/64"), cidr("2001:db8:77::2/64"), cidr("2001:db8:9::/64")
		for _, h := range []*host{a, b} {
			h.sysctl("ipv6/conf/default/accept_dad", "0")
			h.sysctl("ipv6/ip_nonlocal_bind", "1")
		}
	}
	a.Wire(b.Host, "fast0", here, there)
	require.NoError(t, a.NL.RouteAdd(&netlink.Route{LinkIndex: a.Link("lo").Attrs().Index, Dst: network, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Table: unix.RT_TABLE_LOCAL}))
	require.NoError(t, b.NL.RouteAdd(&netlink.Route{LinkIndex: b.Link("fast0").Attrs().Index, Dst: network, Gw: here.IP}))
	if f.cookies != "" {
		b.sysctl("ipv4/tcp_syncookies", f.cookies)
	}
	a.Reach(b.Host, there.IP)
	return a, b, here.IP.String()
}

// begin floods the ports from a host until the test ends. It returns the number of connections that were made.
func (f flood) begin(t testing.TB, from *host, own string, ports []netip.AddrPort) (made *atomic.Int64, stop func()) {
	t.Helper()
	made = new(atomic.Int64)
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		from.Aside(func() {
			if err := netns.Set(from.NS); err != nil {
				t.Error(err)
				return
			}
			f.run(own, ports, made, ended)
		})
	}()
	stop = func() {
		select {
		case <-ended:
		default:
			close(ended)
		}
		<-done
	}
	t.Cleanup(stop)
	return made, stop
}

// run connects, and holds the connections as long as its descriptors suffice. It does not wait for connections to be made.
func (f flood) run(own string, ports []netip.AddrPort, made *atomic.Int64, ended chan struct{}) {
	const most = 8000
	var held []int
	fresh := map[int][]byte{} // what is to be sent once they are made
	began := time.Now()
	for n := 0; ; {
		select {
		case <-ended:
			for _, fd := range held {
				_ = unix.Close(fd)
			}
			return
		case <-time.After(time.Millisecond):
		}
		for fd, text := range fresh {
			if _, err := unix.SendmsgN(fd, text, nil, nil, unix.MSG_NOSIGNAL); err != unix.EAGAIN && err != unix.ENOTCONN {
				delete(fresh, fd)
			}
		}
		for due := int(time.Since(began).Seconds() * float64(f.rate*len(ports))); n < due; n++ {
			fd := f.connect(own, n, ports[n%len(ports)])
			if fd < 0 {
				continue
			}
			made.Add(1)
			if f.says != "" {
				fresh[fd] = f.text(n%len(ports) == len(ports)-1)
			}
			if held = append(held, fd); len(held) > most {
				_ = unix.SetsockoptLinger(held[0], unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
				_ = unix.Close(held[0])
				delete(fresh, held[0])
				held = held[1:]
			}
		}
	}
}

// connect begins a connection from the n-th source.
func (f flood) connect(own string, n int, to netip.AddrPort) int {
	family := unix.AF_INET
	if f.v6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	source := netip.MustParseAddr(own)
	if !f.peer {
		k := n / 2 % f.sources // of both ports
		source = netip.AddrFrom4([4]byte{10, 9, byte(k >> 8), byte(k)})
		if f.v6 {
			source = netip.MustParseAddr(fmt.Sprintf("2001:db8:9::%x", k+1))
		}
	}
	if err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(source, 0))); err == nil {
		err = unix.Connect(fd, sockaddr(to))
	}
	if err != nil && err != unix.EINPROGRESS {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// floodScene is a pair under traffic whose target is flooded.
type floodScene struct {
	a, b  *host
	own   string
	p     *pairOf
	x     *worker.Xfer
	guest *worker.Worker // of further agents
	n     int
}

func newFloodScene(t testing.TB, f flood, target ...string) *floodScene {
	t.Helper()
	s := &floodScene{}
	s.a, s.b, s.own = floodHosts(t, f)
	kv := []string{"provider", "tcp", "devices", "fast0", "log", "info"}
	s.p = &pairOf{env: testenv.Need(t), ini: s.a.start("alice", params(kv...)),
		tgt: s.b.start("bob", params(slices.Concat(kv, []string{"control_port", "7000", "data_port", "7001"}, target)...))}
	s.p.tgt.Polling(true)
	x, y := s.p.buffers(64 << 10)
	s.x = s.p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: x.All(), Remote: y.All(), Peer: "bob"})
	s.x.Do(limit)
	s.guest = s.a.worker(worker.Options{Env: s.p.env})
	return s
}

// ports are the target's control port and its data port.
func (s *floodScene) ports() []netip.AddrPort {
	at := netip.MustParseAddr("10.77.0.2")
	if netip.MustParseAddr(s.own).Is6() {
		at = netip.MustParseAddr("2001:db8:77::2")
	}
	return []netip.AddrPort{netip.AddrPortFrom(at, 7000), netip.AddrPortFrom(at, 7001)}
}

// dial makes an agent that reaches the target for the first time. It returns the time of the first transfer.
func (s *floodScene) dial(t testing.TB) time.Duration {
	t.Helper()
	s.n++
	g := agent(s.guest, s.p.env, fmt.Sprintf("guest%d", s.n), params("provider", "tcp", "devices", "fast0", "log", "warn"))
	here, there := g.Buffer(4096, seedA), s.p.tgt.Buffer(4096, seedB)
	g.Learn(s.p.tgt)
	began := time.Now()
	x := g.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: here.All(), Remote: there.All(), Peer: "bob"})
	x.Do(limit)
	took := time.Since(began)
	there.Want(seedA)
	require.NoError(t, g.Close())
	return took
}

// breakConnections cuts all connections of the initiator to the target. It returns the time of the next transfer that is done.
func (s *floodScene) breakConnections(t testing.TB) time.Duration {
	t.Helper()
	fds, err := connections(t, s.p.ini.Pid())
	require.NoError(t, err)
	defer closeAll(fds)
	require.NotEmpty(t, fds)
	began := time.Now()
	for _, fd := range fds {
		shut(fd)
	}
	require.True(t, worker.Eventually(limit, func() bool {
		status := s.x.Try(limit)
		return status == nixlapi.Success
	}), s.p.ini.Output())
	return time.Since(began)
}

func (s *floodScene) transfers(t testing.TB, n int) []int64 {
	t.Helper()
	r := s.x.Loop(worker.LoopArgs{N: n, Timeout: limit, Times: true})
	require.Equal(t, nixlapi.Success, r.Status)
	require.Len(t, r.Lat, n)
	slices.Sort(r.Lat)
	return r.Lat
}

// TestFloods: while unauthenticated connections flood the control port and the data port, new peers connect, a peer whose connections
// break comes back, and transfers go on.
func TestFloods(t *testing.T) {
	for i, f := range floods {
		if testing.Short() && i%3 != 0 { // each takes the host for six seconds
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			s := newFloodScene(t, f)
			made, stop := f.begin(t, s.a, s.own, s.ports())
			require.True(t, worker.Eventually(limit, func() bool { return made.Load() > int64(10*f.rate) }), "the flood is under way")
			bound := testenv.Patient(5 * time.Second)
			for range 6 {
				require.Less(t, s.dial(t), bound)
			}
			for range 3 {
				require.Less(t, s.breakConnections(t), bound)
			}
			s.transfers(t, 200)
			stop()
			exit(t, s.p.ini, s.p.tgt)
		})
	}
}

// TestFloodOfFewDescriptors: unauthenticated connections do not take the last descriptors of a target that may open few, be they one source or many. Its host opens
// files, new peers connect, and a peer whose connections break comes back. As TestFloods it takes the host.
func TestFloodOfFewDescriptors(t *testing.T) {
	const most = 300
	for _, f := range []flood{{name: "1 source", sources: 1, rate: 300}, {name: "12000 sources", sources: 12000, rate: 2500}} {
		t.Run(f.name, func(t *testing.T) {
			s := newFloodScene(t, f)
			pid := s.p.tgt.Pid()
			require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}, nil))
			made, stop := f.begin(t, s.a, s.own, s.ports())
			require.True(t, worker.Eventually(limit, func() bool { return made.Load() > int64(5*f.rate) }), "the flood is under way")
			bound := testenv.Patient(15 * time.Second) // before: 30 s, and an error
			for range 4 {
				list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
				require.NoError(t, err)
				require.Less(t, len(list), most-most/8)
				require.Less(t, s.dial(t), bound)
				require.Less(t, s.breakConnections(t), bound)
			}
			s.transfers(t, 200)
			stop()
			exit(t, s.p.ini, s.p.tgt)
		})
	}
}

// BenchmarkFloods reports the times of honest peers while unauthenticated connections flood a target's ports:
//
//	go test ./test/e2e -run NONE -bench Floods -benchtime 1x
func BenchmarkFloods(b *testing.B) {
	for _, f := range append([]flood{{name: "none", sources: 1}}, floods...) {
		b.Run(f.name, func(b *testing.B) {
			for b.Loop() { // what follows has its own number of rounds
			}
			s := newFloodScene(b, f)
			quiet := s.transfers(b, 2000)
			made := new(atomic.Int64)
			if f.rate > 0 {
				made, _ = f.begin(b, s.a, s.own, s.ports())
				time.Sleep(20 * time.Second) // until a queue of the kernel's is full
			}
			var dials, back []int64
			for range 60 {
				dials = append(dials, int64(s.dial(b)))
			}
			for range 10 {
				back = append(back, int64(s.breakConnections(b)))
			}
			flooded := s.transfers(b, 2000)
			slices.Sort(dials)
			ms := func(v []int64, p int) float64 { return float64(v[(len(v)-1)*p/100]) / 1e6 }
			b.ReportMetric(ms(dials, 50), "dial-p50-ms")
			b.ReportMetric(ms(dials, 99), "dial-p99-ms")
			b.ReportMetric(ms(slices.Sorted(slices.Values(back)), 100), "back-max-ms")
			b.ReportMetric(ms(flooded, 99)/ms(quiet, 99), "transfer-p99-ratio")
			b.ReportMetric(float64(made.Load()), "connections")
		})
	}
}
