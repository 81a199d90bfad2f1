package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
	"gorail/nixlapi"
	"gorail/test/worker"
)

// snapshot reads an engine's stats_file.
func snapshot(t testing.TB, file string) (s stats.Snapshot) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &s))
	return s
}

// TestStatsPaths: an engine's stats_file has the bytes of each rail and link. Both rails have carried some, and together
// all of them. At level debug the log has the rails of each transfer.
func TestStatsPaths(t *testing.T) {
	t.Parallel()
	ours(t)
	const size = 24 << 20
	file := filepath.Join(t.TempDir(), "stats.json")
	ha, hb := rails(t, 400, 400)
	p := onRails(t, ha, hb, "stats_file", file, "log", "debug")
	a, b := p.buffers(size)
	w := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
	w.Do(limit)
	b.Want(seedA)
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	require.NoError(t, w.Release())
	says(t, p.ini.Worker, "transfer ended", "op=WRITE", "rail0>", "rail1>")
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob"}).Do(limit)
	require.NoError(t, p.ini.Close())

	s := snapshot(t, file)
	require.Equal(t, "alice", s.Agent)
	require.Len(t, s.Rails, 3)
	var rail stats.Counts
	for _, r := range s.Rails {
		if r.Device == "lo" {
			require.Zero(t, r.Counts)
			continue
		}
		require.Contains(t, r.Device, "rail")
		require.Positive(t, r.BytesWritten, r.Name)
		require.Positive(t, r.BytesRead, r.Name)
		require.Zero(t, r.InFlight)
		require.Zero(t, r.Errors+r.Retries+r.Stalls)
		rail.Add(r.Counts)
	}
	require.EqualValues(t, size, rail.BytesWritten)
	require.EqualValues(t, size, rail.BytesRead)
	require.Len(t, s.Peers, 1)
	bob := s.Peers[0]
	require.Equal(t, "bob", bob.Agent)
	require.Equal(t, stats.Initiator, bob.Direction)
	require.EqualValues(t, size, bob.BytesWritten)
	require.EqualValues(t, 1, bob.MessagesSent)
	require.Len(t, bob.Links, 2)
	for i, l := range bob.Links {
		require.Equal(t, s.Rails[l.Index].BytesWritten, l.BytesWritten, i)
		require.Equal(t, l.Rail, l.PeerRail, "a wire has one name at both ends")
	}
}
