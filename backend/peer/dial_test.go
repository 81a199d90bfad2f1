package peer

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

func TestReachable(t *testing.T) {
	control := []string{"192.0.2.1:5", "127.0.0.1:5", "[::1]:5", "[2001:db8::1]:5", "0.0.0.0:5", "198.51.100.1:0", "nonsense"}
	here := wire.ConnBlob{Boot: "b", NetNS: 7}
	all := []string{"127.0.0.1:5", "[::1]:5", "192.0.2.1:5", "[2001:db8::1]:5"}
	for _, c := range []struct {
		name string
		self wire.ConnBlob
		to   wire.ConnBlob
		want []string
	}{
		{"same host and namespace", here, here, all},
		{"another host", here, wire.ConnBlob{Boot: "c", NetNS: 7}, all[2:]},
		{"another namespace", here, wire.ConnBlob{Boot: "b", NetNS: 8}, all[2:]},
		{"nothing known", wire.ConnBlob{}, wire.ConnBlob{}, all[2:]},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.to.Control = control
			var got []string
			for _, a := range reachable(&c.self, &c.to) {
				got = append(got, a.String())
			}
			assert.Equal(t, c.want, got)
		})
	}
}

// dialer makes a node whose dial function is scripted.
func dialer(t *testing.T, connectTimeout time.Duration, dial func(ctx context.Context, to netip.AddrPort) error) (from *Node, tried func() []string) {
	cfg := config("from")
	cfg.ConnectTimeout = connectTimeout
	from = newNode(cfg, newTarget())
	var log []string
	from.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		log = append(log, to.String())
		return nil, dial(ctx, to)
	}
	return from, func() []string { return log }
}

func TestRefusedIsTriedAgainBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, tried := dialer(t, 5*time.Second, func(_ context.Context, to netip.AddrPort) error {
			if to.Addr().IsLoopback() {
				return &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return syscall.EACCES
		})
		defer from.Close()
		to := newBlob("gone")
		to.Control = []string{"192.0.2.1:1", "127.0.0.1:1"}
		i := newInitiator()
		start := time.Now()
		from.Dial(to, 0, i)
		err := want[evLost](t, i.events).err
		assert.Equal(t, 620*time.Millisecond, time.Since(start))
		assert.Equal(t, []string{"127.0.0.1:1", "192.0.2.1:1", "127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1"}, tried())
		assert.ErrorIs(t, err, ErrUnreachable)
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		assert.ErrorContains(t, err, `"gone"`)
		assert.ErrorContains(t, err, "127.0.0.1:1")
		assert.ErrorContains(t, err, "metadata")
	})
}

func TestConnectTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, tried := dialer(t, 3*time.Second, func(ctx context.Context, _ netip.AddrPort) error {
			<-ctx.Done()
			return ctx.Err()
		})
		defer from.Close()
		to := newBlob("behind a firewall")
		to.Control = []string{"192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"}
		i := newInitiator()
		start := time.Now()
		from.Dial(to, 0, i)
		err := want[evLost](t, i.events).err
		assert.ErrorIs(t, err, ErrUnreachable)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.ErrorContains(t, err, "192.0.2.2:1: no answer to a connection request within 1s")
		assert.Equal(t, 3*time.Second, time.Since(start))
		assert.Equal(t, to.Control, tried(), "each address gets its share of the time")
	})
}

func TestNextAddressAfterAnImpostor(t *testing.T) {
	i, s := newInitiator(), newTarget()
	to, from := listen(t, s), listen(t, newTarget())
	b := blob(to)
	stranger := impostor(t, func(c net.Conn) { _, _ = c.Write([]byte("SSH-2.0-OpenSSH_9.2\r\n")) })
	other := listen(t, newTarget()) // another engine, at an address that the target's blob names too
	b.Control = append(append(stranger.Control, other.Addrs()...), b.Control...)
	from.Dial(b, 0, i)
	want[evOffers](t, i.events)
	want[evReady](t, i.events)
	assert.Equal(t, uint64(1), other.Stats().WrongEngine)
}

func TestLoopbackIsDialedFromLoopback(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := dialTCP(t.Context(), netip.MustParseAddrPort(l.Addr().String()))
	require.NoError(t, err)
	defer c.Close()
	assert.Equal(t, "127.0.0.1", c.LocalAddr().(*net.TCPAddr).IP.String())
	raw, err := c.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		noDelay, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_NODELAY)
		assert.NoError(t, err)
		assert.Equal(t, 1, noDelay)
		keepAlive, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE)
		assert.NoError(t, err)
		assert.Equal(t, 0, keepAlive)
	}))
}

// A dial whose time passed while this process got no CPU time says nothing about the peer, and is tried again.
func TestStarvedDialIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, tried := dialer(t, 12*time.Second, func(ctx context.Context, _ netip.AddrPort) error {
			<-ctx.Done()
			time.Sleep(2 * starvedBy)
			return ctx.Err()
		})
		defer from.Close()
		to := newBlob("starved")
		to.Control = []string{"192.0.2.1:1"}
		i := newInitiator()
		from.Dial(to, 0, i)
		assert.ErrorIs(t, want[evLost](t, i.events).err, ErrUnreachable)
		assert.Len(t, tried(), 3, "5 s, 5 s, and the rest of the 12 s")
	})
}

// A host that starves takes a connection, says nothing, and takes none for a while after that. The dial goes on for connect_timeout: the peer was there.
func TestStarvingHostIsDialedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 8 * time.Second
		from, _ := dialer(t, most, nil)
		first := true
		from.dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			if first {
				first = false
				here, there := net.Pipe()
				return here, there.Close() // evicted
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		defer from.Close()
		to := newBlob("starving")
		to.Control = []string{"192.0.2.1:1"}
		i := newInitiator()
		start := time.Now()
		from.Dial(to, 0, i)
		assert.ErrorIs(t, want[evLost](t, i.events).err, ErrUnreachable)
		assert.Equal(t, most, time.Since(start))
	})
}
