package verbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake/drive"
	imitation "gorail/test/verbs"
)

// A message without the wake flag does not wake a sleeper, and the next one with the flag does. A sleeper with an
// operation in flight is woken by its completion, whether it was posted before or after arming.
func TestQuietMessages(t *testing.T) {
	lib := imitation.Build(t)
	a, b := pair(t, lib)
	x, y := link(a, b)
	recv := func(id uint64) { require.NoError(t, b.d.Recv(y.Core(), id, b.mem[:64], b.mr.Desc())) }
	send := func(kind int, id uint64) {
		require.NoError(t, a.d.Together(drive.Op{Ep: x.Core(), Kind: kind, ID: id, Segs: drive.Msg(a.mem[:64], a.mr.Desc())}))
	}
	recv(0)
	recv(1)
	recv(2)
	require.True(t, b.d.Arm())
	send(drive.SendQuiet, 0)
	require.False(t, b.d.Readable(), "a quiet message")
	send(drive.Send, 1)
	require.True(t, b.d.Readable())
	b.until(2)

	require.True(t, b.d.Arm())
	require.False(t, b.d.Readable())
	require.NoError(t, b.d.RMA(y.Core(), drive.Write, 10, b.segs(a, 1, 64)...))
	require.True(t, b.d.Readable(), "posted since")
	b.until(3)

	lib.Set("delay", 2) // requests complete at the second poll of their side
	require.NoError(t, b.d.RMA(y.Core(), drive.Write, 11, b.segs(a, 1, 64)...))
	require.True(t, b.d.Arm())
	send(drive.SendQuiet, 2)
	a.until(3)
	require.True(t, b.d.Readable(), "posted before")
	b.until(5)
}
