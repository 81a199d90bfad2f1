package engine

import (
	"hash/crc32"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/wire"
)

// Metadata of another wire version is refused at load with NIXL_ERR_MISMATCH, and counted.
func TestAnotherVersion(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	a, b := h.agent("ann"), h.agent("bob")
	conn := append([]byte{}, b.Conn()...)
	conn[3] = wire.Version + 1
	body := conn[:len(conn)-4]
	sum := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
	conn = append(body, byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum))
	for range 2 {
		err := a.LoadConn("bob", conn)
		require.Equal(t, status.ErrMismatch, status.Of(err))
		require.ErrorContains(t, err, "version mismatch: install the same GORAIL on both sides")
	}
	require.EqualValues(t, 2, a.snapshot().PeersRefusedVersion)
	require.NoError(t, a.LoadConn("bob", b.Conn()))
	require.EqualValues(t, 2, a.snapshot().PeersRefusedVersion)
}
