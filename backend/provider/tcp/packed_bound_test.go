package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/tcp/sock"
	"gorail/internal/pattern"
	"gorail/test/drive"
)

// TestPackedIsBounded: peers that receive nothing keep 64 packed bodies of a rail. What is for others goes in clear.
func TestPackedIsBounded(t *testing.T) {
	t.Parallel()
	const bound, size = 64, 1 << 20
	v := &rules{node: newNodeOf(t, 2*size, Options{Compression: sock.AlwaysPack, tune: small})}
	pattern.Fill(v.mem, pattern.Floats, 0)
	for range bound + 6 {
		s := v.meet(t)
		defer s.close()
		v.post(s, drive.Write, size)
		v.poll()
	}
	require.EqualValues(t, bound*size, v.rail.c.Counters().Texts)
}
