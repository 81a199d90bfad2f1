package engine

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
)

// Several dials of one peer fail. The log has one line for them.
func TestDialedInVain(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a, b := h.agent("ann", "connect_timeout", "100ms"), h.agent("bob")
	silent, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections, and no process answers
	require.NoError(t, err)
	defer silent.Close()
	blob := b.blob
	blob.Control = []string{silent.Addr().String()}
	conn, err := blob.Encode()
	require.NoError(t, err)
	require.NoError(t, a.LoadConn("bob", conn))
	r := a.remote("bob")
	failed := func(n int) bool { return r.inside().Failed >= n }
	for i := range 6 {
		require.NoError(t, a.Connect("bob"))
		until(t, "the dial has failed", func() bool { return failed(i + 1) })
	}
	require.True(t, h.log.has("level=WARN", "peer not reached", silent.Addr().String(), "its process has said nothing"))
	require.Equal(t, 1, h.log.count("its process has said nothing"), h.log.String())
}
