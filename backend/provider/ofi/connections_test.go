package ofi

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
)

// The folder that is kept open lists what was opened since, and knows which descriptor is next.
func TestOpenFiles(t *testing.T) {
	files, err := listOpenFiles()
	require.NoError(t, err)
	defer files.close()
	list := func() (all []int) {
		require.NoError(t, files.each(func(fd int) bool { all = append(all, fd); return true }))
		return all
	}
	next := files.lowestFree()
	require.NotContains(t, list(), next)
	fd, err := unix.Dup(files.dir)
	require.NoError(t, err)
	require.Contains(t, list(), fd)
	require.NoError(t, unix.Close(fd))
	require.False(t, slices.Contains(list(), fd))
	n := 0
	require.NoError(t, files.each(func(int) bool { n++; return n < 2 }))
	require.Equal(t, 2, n)
	require.Error(t, noFiles.each(func(int) bool { return true }))
	require.Equal(t, -1, noFiles.lowestFree())
}

// Names of sockets compare as the kernel tells them apart; what has no IP address has none.
func TestSocketNames(t *testing.T) {
	var plain net.ListenConfig
	for _, at := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		l, err := plain.Listen(context.Background(), "tcp", at)
		if err != nil {
			t.Logf("%s: %v", at, err)
			continue
		}
		f, err := l.(*net.TCPListener).File()
		require.NoError(t, err)
		name, ok := ownName(int(f.Fd()))
		require.True(t, ok)
		require.Equal(t, sockName{at: l.Addr().(*net.TCPAddr).AddrPort()}, name)
		require.Equal(t, name.at.Addr(), name.host().at.Addr())
		require.Zero(t, name.host().at.Port())
		require.True(t, listens(int(f.Fd())))
		_, ok = peerName(int(f.Fd()))
		require.False(t, ok)
		require.NoError(t, f.Close())
		require.NoError(t, l.Close())
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	for _, fd := range pair {
		_, ok := ownName(fd)
		require.False(t, ok)
		require.NoError(t, unix.Close(fd))
	}
	_, ok := ownName(-1)
	require.False(t, ok)

	link := make([]byte, unix.SizeofSockaddrInet6)
	binary.NativeEndian.PutUint16(link, unix.AF_INET6)
	link[2], link[3], link[8], link[9], link[24] = 1, 2, 0xfe, 0x80, 3
	a, ok := nameOf(link)
	require.True(t, ok)
	require.Equal(t, netip.MustParseAddrPort("[fe80::]:258"), a.at)
	link[24] = 4
	b, _ := nameOf(link)
	require.NotEqual(t, a, b, "the same address of another interface")
	require.NotEqual(t, a.host(), b.host())
}

// A connection to an endpoint that never says who it is goes down with it. Left to libfabric it stays open, with a
// pointer to the freed endpoint that the next poll follows.
func TestStrangersGoWithTheEndpoint(t *testing.T) {
	rail := openLoopback(t, "tcp")
	defer rail.Close()
	poller := drive.New(rail.Core())
	for _, accepted := range []bool{false, true} {
		ep, err := rail.OpenEndpoint()
		require.NoError(t, err)
		other, err := rail.OpenEndpoint()
		require.NoError(t, err)
		peer, err := rail.OpenEndpoint()
		require.NoError(t, err)
		require.NoError(t, ep.Connect(peer.Addr())) // whose address is let in
		require.NoError(t, other.Connect(peer.Addr()))
		addr := net.TCPAddrFromAddrPort(addrPort(ep))
		stranger, err := net.DialTCP("tcp", nil, addr)
		require.NoError(t, err)
		bystander, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(addrPort(other)))
		require.NoError(t, err)
		if accepted {
			poll(t, poller)
		}
		require.NoError(t, ep.Close())
		require.NoError(t, stranger.SetReadDeadline(time.Now().Add(5*time.Second)))
		_, err = stranger.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "still open")
		require.NoError(t, stranger.Close())
		poll(t, poller)

		require.NoError(t, bystander.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
		_, err = bystander.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "another endpoint's connection")
		require.NoError(t, bystander.Close())
		require.NoError(t, other.Close())
		require.NoError(t, peer.Close())
	}
}

func addrPort(ep provider.Endpoint) netip.AddrPort {
	addr := ep.Addr()
	return netip.AddrPortFrom(sockaddr(addr), binary.BigEndian.Uint16(addr[2:]))
}

func poll(t *testing.T, rail drive.Rail) {
	_, err := rail.Poll(1)
	require.NoError(t, err)
}
