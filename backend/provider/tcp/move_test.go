package tcp

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/tcp/handshake"
	"gorail/backend/topo"
)

// TestMove: a rail, and all its shards, listen on the interface's new address. Endpoints from then on have it. The old listener is closed.
func TestMove(t *testing.T) {
	t.Parallel()
	now := netip.MustParsePrefix("127.0.0.1/8")
	lo := func() ([]topo.Interface, error) {
		return []topo.Interface{{Name: "lo", Loopback: true, Up: true, Addrs: []netip.Prefix{now}}}, nil
	}
	for _, shards := range []int{1, 3} {
		now = netip.MustParsePrefix("127.0.0.1/8")
		p := New(Options{Threads: shards, Interfaces: lo})
		find := func() provider.Device {
			list, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{Fabric}})
			require.NoError(t, err)
			return list[0]
		}
		var rails []provider.Rail
		for i := range shards {
			d := find()
			d.Shard = i
			r, err := p.Open(d)
			require.NoError(t, err)
			rails = append(rails, r)
		}
		at := func(r provider.Rail) netip.AddrPort {
			e, err := r.OpenEndpoint()
			require.NoError(t, err)
			defer e.Close()
			a, ok := handshake.Decode(e.Addr())
			require.True(t, ok)
			return a.At
		}
		old := at(rails[0])
		before, err := rails[0].OpenEndpoint() // one that is open stays usable until it is closed
		require.NoError(t, err)
		now = netip.MustParsePrefix("127.0.0.8/8")
		for i, r := range rails {
			require.NoError(t, r.(provider.Mover).Move(now))
			d := r.Device()
			require.Equal(t, []any{"127.0.0.8", "127.0.0.0/8", i}, []any{d.Addr, d.Subnet, d.Shard})
			require.Equal(t, "127.0.0.8", at(r).Addr().String())
			require.Equal(t, at(rails[0]), at(r))
		}
		_, err = net.Dial("tcp", old.String())
		require.Error(t, err)
		require.Error(t, rails[0].(provider.Mover).Move(netip.MustParsePrefix("192.0.2.1/24")), "not an address of this host")
		require.Equal(t, "127.0.0.8", at(rails[0]).Addr().String(), "an error changes nothing")
		require.NoError(t, before.Close())
		for _, r := range rails {
			require.NoError(t, r.Close())
		}
	}
}
