package sockets

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Names compare equal exactly for the same socket address. A socket without an IP address has no name.
func TestNames(t *testing.T) {
	var plain net.ListenConfig
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		l, err := plain.Listen(context.Background(), "tcp", at)
		if err != nil {
			t.Logf("%s: %v", at, err)
			continue
		}
		f, err := l.(*net.TCPListener).File()
		require.NoError(t, err)
		name, ok := Own(int(f.Fd()))
		require.True(t, ok)
		require.Equal(t, Name{At: l.Addr().(*net.TCPAddr).AddrPort()}, name)
		require.Equal(t, name.At.Addr(), name.Host().At.Addr())
		require.Zero(t, name.Host().At.Port())
		require.True(t, Listens(int(f.Fd())))
		_, ok = Peer(int(f.Fd()))
		require.False(t, ok)
		require.NoError(t, f.Close())
		require.NoError(t, l.Close())
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	for _, fd := range pair {
		_, ok := Own(fd)
		require.False(t, ok)
		require.NoError(t, unix.Close(fd))
	}
	_, ok := Own(-1)
	require.False(t, ok)

	link := make([]byte, unix.SizeofSockaddrInet6)
	binary.NativeEndian.PutUint16(link, unix.AF_INET6)
	link[2], link[3], link[8], link[9], link[24] = 1, 2, 0xfe, 0x80, 3
	a, ok := NameOf(link)
	require.True(t, ok)
	require.Equal(t, netip.MustParseAddrPort("[fe80::]:258"), a.At)
	link[24] = 4
	b, _ := NameOf(link)
	require.NotEqual(t, a, b, "the same address of another interface")
	require.NotEqual(t, a.Host(), b.Host())
}
