package ofi

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
)

// openPorts opens the loopback rail with the given ports.
func openPorts(t *testing.T, ports Ports) provider.Rail {
	t.Helper()
	p := New(Options{LibraryPath: testLibrary(), Ports: ports})
	devs, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{"tcp"}, Devices: []string{"lo"}})
	if errors.Is(err, provider.ErrNoDevice) || errors.Is(err, provider.ErrNoLibrary) {
		t.Skip(err)
	}
	require.NoError(t, err)
	rail, err := p.Open(devs[slices.IndexFunc(devs, func(d provider.Device) bool { return d.Addr == "127.0.0.1" })])
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rail.Close()) })
	return rail
}

func openEP(t *testing.T, r provider.Rail) *endpoint {
	t.Helper()
	ep, err := r.OpenEndpoint()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ep.Close()) })
	return ep.(*endpoint)
}

// silence is how long no answer to a dropped SYN may come. An admitted connection is much faster on loopback: the
// answer comes at once, or with the next SYN after a second.
const silence = 1500 * time.Millisecond

// dialFrom connects from an address of this host.
func dialFrom(t *testing.T, from string, to netip.AddrPort, limit time.Duration) (net.Conn, error) {
	t.Helper()
	d := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", to.String())
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func shutOut(t *testing.T, from string, to netip.AddrPort) {
	t.Helper()
	_, err := dialFrom(t, from, to, silence)
	var late net.Error
	require.ErrorAs(t, err, &late, "%s to %s", from, to)
	require.True(t, late.Timeout(), "%s to %s: %v", from, to, err)
}

func letIn(t *testing.T, from string, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := dialFrom(t, from, to, 10*time.Second)
	require.NoError(t, err)
	return c
}

// Before Connect nobody can connect to an endpoint. After Connect only the peer's addresses can. After Shut nobody can.
func TestEndpointAdmitsItsPeerAlone(t *testing.T) {
	rail := openPorts(t, Ports{Sources: []netip.Prefix{netip.MustParsePrefix("127.8.0.0/16")}})
	ep, other := openEP(t, rail), openEP(t, rail)
	addr := addrPort(ep)
	shutOut(t, "127.0.0.1", addr)
	ep.Admit([]netip.Addr{netip.MustParseAddr("127.0.0.7"), netip.MustParseAddr("::ffff:127.0.0.9"), netip.MustParseAddr("fd00::1"), {}})
	require.NoError(t, ep.Connect(other.Addr()))
	for _, from := range []string{"127.0.0.1", "127.0.0.7", "127.0.0.9", "127.8.3.4"} {
		letIn(t, from, addr)
	}
	for _, from := range []string{"127.0.0.2", "127.0.0.6", "127.9.0.1", "127.7.255.255"} {
		shutOut(t, from, addr)
	}
	ep.Shut()
	for _, from := range []string{"127.0.0.1", "127.0.0.7", "127.8.3.4"} {
		shutOut(t, from, addr)
	}
	ep.Shut() // a second Shut does no harm
}

// Shut breaks connections that were admitted and sent no message, whether libfabric had accepted them or not.
func TestSilentOnesGoWhenTheFilterIsShut(t *testing.T) {
	rail := openPorts(t, Ports{})
	poller := drive.New(rail.Core())
	ep, other := openEP(t, rail), openEP(t, rail)
	require.NoError(t, ep.Connect(other.Addr()))
	require.NoError(t, other.Connect(ep.Addr()))
	buf := drive.Alloc(8192)
	require.NoError(t, poller.Recv(ep.Core(), 1, buf[:4096], nil))
	var silent []net.Conn
	for range 10 {
		silent = append(silent, letIn(t, "127.0.0.1", addrPort(ep)))
		poll(t, poller)
	}
	half := letIn(t, "127.0.0.1", addrPort(ep)) // sends a connection request and no more
	_, err := half.Write(request)
	require.NoError(t, err)
	silent = append(silent, half)
	message(t, poller, other, 2, buf[4096:4136], 1)
	for range 10 {
		silent = append(silent, letIn(t, "127.0.0.1", addrPort(ep))) // waiting in the kernel's queue
	}
	ep.Shut()
	for i, c := range silent {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		for err = nil; err == nil; {
			poll(t, poller)
			_, err = c.Read(make([]byte, 64)) // the answer to a connection request comes first
		}
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "connection %d is still open", i)
	}
	require.NoError(t, poller.Recv(ep.Core(), 3, buf[:4096], nil))
	message(t, poller, other, 4, buf[4096:4136], 3)
}

// message sends a message and waits for its completion and for the receive's.
func message(t *testing.T, r drive.Rail, from provider.Endpoint, id uint64, text []byte, recv uint64) {
	t.Helper()
	posted := false
	for late, missing := time.Now().Add(10*time.Second), []uint64{id, recv}; len(missing) > 0; {
		require.True(t, time.Now().Before(late), "no completion of %v", missing)
		if !posted {
			err := r.Send(from.Core(), id, text, nil)
			posted = err == nil
			require.True(t, posted || errors.Is(err, syscall.EAGAIN), "%v", err)
		}
		comps, err := r.Poll(4)
		require.NoError(t, err)
		for _, c := range comps {
			require.Zero(t, c.Err)
			missing = slices.DeleteFunc(missing, func(m uint64) bool { return m == c.ID })
		}
	}
}

// request is libfabric's connection request as an initiator sends it: a control header of version 3, and the
// initiator's port.
var request = []byte{3, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x85, 0xcf, 0, 0, 0, 1}

// free finds n consecutive free ports.
func free(t *testing.T, n uint16) uint16 {
	t.Helper()
	for first := uint16(21000); first < 30000; first += n {
		ok := true
		for p := first; p < first+n; p++ {
			l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(p)})
			if ok = ok && err == nil; err == nil {
				l.Close()
			}
		}
		if ok {
			return first
		}
	}
	t.Fatal("no free ports")
	return 0
}

// Endpoints listen within the range. Without a free port the error names the option. A port of a closed endpoint can be
// used again.
func TestDataPorts(t *testing.T) {
	first := free(t, 4)
	rail, second := openPorts(t, Ports{First: first, Last: first + 3}), openPorts(t, Ports{First: first, Last: first + 3})
	var all []provider.Endpoint
	var ports []uint16
	for i := range 4 {
		ep, err := []provider.Rail{rail, second}[i%2].OpenEndpoint()
		require.NoError(t, err)
		all = append(all, ep)
		ports = append(ports, addrPort(ep).Port())
	}
	slices.Sort(ports)
	require.Equal(t, []uint16{first, first + 1, first + 2, first + 3}, ports)
	_, err := rail.OpenEndpoint()
	require.ErrorIs(t, err, provider.ErrEndpoint)
	require.ErrorContains(t, err, "option data_port=")
	require.NoError(t, all[2].Close())
	again, err := second.OpenEndpoint()
	require.NoError(t, err)
	all[2] = again
	for _, ep := range all {
		require.NoError(t, ep.Close())
	}
}

// Without free descriptors libfabric accepts nothing, but its poll reports the connection again and again. The
// connection is reset, the thread may sleep, and a warning is logged. With free descriptors the peer can connect.
func TestNoDescriptorForAConnection(t *testing.T) {
	rail := openPorts(t, Ports{})
	poller := drive.New(rail.Core())
	ep, other := openEP(t, rail), openEP(t, rail)
	require.NoError(t, ep.Connect(other.Addr()))
	to := addrPort(ep)
	client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(client)

	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	lowest, err := unix.FcntlInt(uintptr(client), unix.F_DUPFD_CLOEXEC, 0) // libfabric passes these descriptors to poll, so the limit must not be below them
	require.NoError(t, err)
	require.NoError(t, unix.Close(lowest))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(lowest), Max: was.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }()
	require.NoError(t, unix.Connect(client, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}))
	mayBlock := false
	for end := time.Now().Add(10 * time.Second); !mayBlock && time.Now().Before(end); {
		poll(t, poller)
		mayBlock = poller.Arm()
	}
	require.True(t, mayBlock, "the thread would poll for ever")
	_, err = unix.Read(client, make([]byte, 1))
	require.ErrorIs(t, err, unix.ECONNRESET)
	warnings := rail.(provider.Warner).Warnings()
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "ulimit -n")
	require.Empty(t, rail.(provider.Warner).Warnings(), "said once")

	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	buf := drive.Alloc(8192)
	require.NoError(t, poller.Recv(ep.Core(), 1, buf[:4096], nil))
	require.NoError(t, other.Connect(ep.Addr()))
	message(t, poller, other, 2, buf[4096:4136], 1)
}
