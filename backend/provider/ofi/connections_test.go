package ofi

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
	"gorail/backend/provider/ofi/sockets"
)

// An unauthenticated connection to an endpoint is closed together with the endpoint. libfabric alone would keep it
// open, with a pointer to the freed endpoint that the next poll follows.
func TestUnauthenticatedGoWithTheEndpoint(t *testing.T) {
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
		require.NoError(t, ep.Connect(peer.Addr())) // admits the peer's address
		require.NoError(t, other.Connect(peer.Addr()))
		addr := net.TCPAddrFromAddrPort(addrPort(ep))
		unauthenticated, err := net.DialTCP("tcp", nil, addr)
		require.NoError(t, err)
		bystander, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(addrPort(other)))
		require.NoError(t, err)
		if accepted {
			poll(t, poller)
		}
		require.NoError(t, ep.Close())
		require.NoError(t, unauthenticated.SetReadDeadline(time.Now().Add(5*time.Second)))
		_, err = unauthenticated.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "still open")
		require.NoError(t, unauthenticated.Close())
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
	return netip.AddrPortFrom(sockets.Addr(addr), binary.BigEndian.Uint16(addr[2:]))
}

func poll(t *testing.T, rail drive.Rail) {
	_, err := rail.Poll(1)
	require.NoError(t, err)
}
