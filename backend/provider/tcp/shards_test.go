package tcp

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/tcp/handshake"
)

// TestShardsShareAListener: the shards of a device are reached at one port, by tickets. The last one closes it.
func TestShardsShareAListener(t *testing.T) {
	t.Parallel()
	p := New(Options{Threads: 3})
	list, err := p.Discover(context.Background(), provider.Filter{Fabrics: []string{Fabric}, Devices: []string{"lo"}})
	require.NoError(t, err)
	require.Equal(t, 3, list[0].Shards)
	shards, at := make([]provider.Rail, 3), ""
	for _, i := range []int{1, 0, 2} { // an interface that comes up late opens in any order
		d := list[0]
		d.Shard = i
		shards[i], err = p.Open(d)
		require.NoError(t, err)
		e, err := shards[i].OpenEndpoint()
		require.NoError(t, err)
		a, ok := handshake.Decode(e.Addr())
		require.True(t, ok)
		if at == "" {
			at = a.At.String()
		}
		require.Equal(t, at, a.At.String())
		require.NoError(t, e.Close())
	}
	answers := func() error {
		c, err := net.Dial("tcp", at)
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	for _, i := range []int{0, 2, 1} {
		require.NoError(t, answers())
		require.NoError(t, shards[i].Close())
	}
	require.Error(t, answers())
	again, err := p.Open(list[0])
	require.NoError(t, err)
	require.NoError(t, again.Close())
}
