package e2e

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// The first bytes of GORAIL's blobs inside the agent's metadata.
var (
	connMark   = []byte("GRC")
	regionMark = []byte("GRM")
)

// reach loads good metadata and transfers. It shows that bad metadata loaded before has no effect any more.
func (p *pairOf) reach(t *testing.T, a, b *worker.Buf) {
	t.Helper()
	forget(t, p.ini, "bob")
	b.Fill(seedB)
	p.ini.Learn(p.tgt)
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")}).Do(limit)
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	b.Want(seedA)
}

// TestCorruptMetadata changes bytes of the backend's blobs in the metadata.
func TestCorruptMetadata(t *testing.T) {
	t.Parallel()
	ours(t)
	p := pair(t)
	a, b := p.ini.Buffer(1<<20, seedA), p.tgt.Buffer(1<<20, seedB)
	good := p.tgt.Metadata()
	for _, mark := range [][]byte{connMark, regionMark} {
		at := bytes.Index(good, mark)
		require.Positive(t, at, "%q is not in the metadata %q", mark, good)
		for _, off := range []int{0, 2, 3, 5, 9, 20, 30} { // head, version, body
			bad := bytes.Clone(good)
			bad[at+off] ^= 0x41
			_, err := p.ini.Load(bad)
			require.Error(t, err, "%q, byte %d", mark, off)
			forget(t, p.ini, "bob")
		}
		what := map[byte]string{'C': "connection blob", 'M': "region blob"}[mark[2]]
		says(t, p.ini.Worker, "level=ERROR", what, `"bob"`, "corrupt")
	}
	p.reach(t, a, b)
}

// TestDeadPeer: the initiator loads the metadata of a process that has ended. A post fails soon.
func TestDeadPeer(t *testing.T) {
	t.Parallel()
	ours(t)
	p := pair(t)
	a, b := p.ini.Buffer(1<<20, seedA), p.tgt.Buffer(1<<20, seedB)
	md := p.tgt.Metadata()
	p.tgt.Kill()
	_, err := p.ini.Load(md)
	require.NoError(t, err, "a load must not connect to the peer")
	x, err := p.ini.TryXfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
	require.NoError(t, err)
	began := time.Now()
	expectLost(t, p.ini, x)
	require.Less(t, time.Since(began), min(testenv.Patient(2*time.Second), lost))
	says(t, p.ini.Worker, "peer lost", `"bob"`, "its process", "has ended")
	require.NoError(t, x.Release())
	p.tgt = start(t, "bob")
	p.tgt.Polling(true)
	p.reach(t, a, p.tgt.Buffer(1<<20, seedB))
}

// TestSilentPeer: a stopped peer does not answer within connect_timeout. The post fails, the peer does not count as lost,
// and the next post connects.
func TestSilentPeer(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, c := range []struct{ connect, peer, says string }{
		{"800ms", "10s", "connect_timeout"},
		{"800ms", "500ms", "connect_timeout"},
	} {
		p := pair(t, params("connect_timeout", c.connect, "peer_timeout", c.peer))
		a, b := p.ini.Buffer(1<<20, seedA), p.tgt.Buffer(1<<20, seedB)
		md := p.tgt.Metadata()
		p.tgt.Stop()
		began := time.Now()
		_, err := p.ini.Load(md)
		require.NoError(t, err, "a load must not connect to the peer")
		x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
		x.Post()
		require.True(t, x.Wait(lost).Failed())
		took := time.Since(began)
		require.False(t, toldLost(p.ini))
		p.tgt.Cont()
		require.Less(t, took, min(testenv.Patient(2*time.Second), lost))
		says(t, p.ini.Worker, "peer not reached", `"bob"`, c.says)
		p.tgt.Polling(true)
		x.Do(limit)
		b.Want(seedA)
		require.NoError(t, x.Release())
	}
}
