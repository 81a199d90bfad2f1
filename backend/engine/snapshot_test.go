package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/stats"
	"gorail/backend/status"
	"gorail/backend/transfer"
)

func (a *agent) snapshot() stats.Snapshot {
	a.t.Helper()
	s, err := a.Snapshot()
	require.NoError(a.t, err)
	return s
}

// rest leaves out the times since the last completions.
func rest(s stats.Snapshot) stats.Snapshot {
	for i := range s.Rails {
		s.Rails[i].Idle = 0
	}
	for _, p := range s.Peers {
		for i := range p.Links {
			p.Links[i].Idle = 0
		}
	}
	return s
}

// session returns the counters of the one session with a peer that has not ended.
func session(t testing.TB, s stats.Snapshot, peer string, d stats.Direction) stats.Peer {
	t.Helper()
	var found []stats.Peer
	for _, p := range s.Peers {
		if p.Agent == peer && p.Direction == d && !p.Ended() {
			found = append(found, p)
		}
	}
	require.Len(t, found, 1)
	return found[0]
}

// sums takes a snapshot when the counters rest. It requires that a rail's counters are the sum of its links', ended sessions
// included. The core's counters must be the sum of the rails'.
func (a *agent) sums() stats.Snapshot {
	a.t.Helper()
	s := rest(a.snapshot())
	var core map[string]uint64 // read between two equal snapshots: a session that has ended may still count
	until(a.t, "two snapshots are equal", func() bool {
		last := s
		core = a.core.Counters()
		s = rest(a.snapshot())
		return reflect.DeepEqual(s, last)
	})
	links, all := map[int]*stats.Counts{}, stats.Counts{}
	for _, p := range s.Peers {
		var sum stats.Counts
		for _, l := range p.Links {
			sum.Add(l.Counts)
			if links[l.Index] == nil {
				links[l.Index] = &stats.Counts{}
			}
			links[l.Index].Add(l.Counts)
		}
		require.Equal(a.t, sum, p.Counts)
	}
	for _, r := range s.Rails {
		require.Equal(a.t, *links[r.Index], r.Counts, r.Name)
		all.Add(r.Counts)
	}
	require.Equal(a.t, []uint64{core["write_bytes"], core["read_bytes"], core["work_requests"], core["completion_errors"], core["eagain"]},
		[]uint64{all.BytesWritten, all.BytesRead, all.WorkRequests, all.Errors + all.Flushed, all.EAGAIN})
	return s
}

// Two transfers over two rails are counted to the byte and the work request. The counters of rails, peers, links and the fabric
// agree.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	caps := fake.TCPCaps()
	caps.IOVLimit = 1
	h := onRails(t, 2, caps)
	p := h.pair(size)
	p.allUp(2)
	w := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	r := p.a.whole(transfer.Read, p.mine, p.theirs)
	w.run("one")
	written := w.shares()
	r.run("two")
	read := r.shares()
	nops := uint64(len(w.record().Ops()) + len(r.record().Ops()))
	require.NoError(t, p.a.Notify("bob", []byte("three")))
	p.b.expect("ann:one", "ann:two", "ann:three")

	s := p.a.sums()
	bob := session(t, s, "bob", stats.Initiator)
	require.Equal(t, "ready", bob.State)
	require.Equal(t, p.b.blob.Engine.String(), bob.Engine)
	require.EqualValues(t, size, bob.BytesWritten)
	require.EqualValues(t, size, bob.BytesRead)
	require.Equal(t, nops, bob.WorkRequests)
	require.EqualValues(t, 3, bob.MessagesSent)
	require.EqualValues(t, 2, bob.Probes, "one for each link")
	require.Zero(t, bob.InFlight)
	require.Zero(t, bob.Errors+bob.Retries+bob.Fences+bob.Stalls)
	require.Len(t, bob.Links, 2)
	for i, l := range bob.Links {
		require.Equal(t, written[i], l.BytesWritten)
		require.Equal(t, read[i], l.BytesRead)
		require.Positive(t, l.BytesWritten, "both links carry bytes")
		require.Equal(t, stats.Working, l.Phase)
		require.Equal(t, fmt.Sprint("fake/fake", i), l.Rail)
		require.Equal(t, l.Rail, l.PeerRail)
		require.Equal(t, i, l.Index)

		c, rail := p.a.railNo(i).Counters(), s.Rails[i]
		require.Equal(t, c.Posts, rail.WorkRequests)
		require.Equal(t, c.EAGAIN, rail.EAGAIN)
		require.Equal(t, written[i]+read[i], rail.BytesWritten+rail.BytesRead)
		require.Equal(t, stats.Up, rail.State)
		require.Equal(t, 2, rail.Links, "one session in each direction")
		require.Equal(t, fmt.Sprint("fake", i), rail.Device)
	}
	ann := session(t, p.b.sums(), "ann", stats.Target)
	require.EqualValues(t, 3, ann.MessagesReceived)
	require.Zero(t, ann.BytesWritten+ann.BytesRead+ann.WorkRequests, "the initiator's counters have its WRITEs and READs")
}

// A rail fails during a transfer. Its counters have the error, the fence and the repeated work requests. A rail keeps the counters
// of a session that has ended.
func TestSnapshotFailure(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	caps := fake.TCPCaps()
	caps.IOVLimit = 1
	h := onRails(t, 2, caps)
	p := h.pair(size, "stats_file", filepath.Join(t.TempDir(), "stats.json"))
	p.allUp(2)
	p.a.railNo(1).Script(fake.Script{FailAt: 4, FailErrno: syscall.EIO, FailBreaks: true})
	p.b.railNo(0).Stall() // so that rail 1 takes enough batches
	x := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).post()
	until(t, "rail 1 is fenced", func() bool { x.check(); return p.a.snapshot().Rails[1].Fences == 1 })
	p.b.railNo(0).Release()
	require.Equal(t, done, x.wait())
	p.same()
	p.allUp(2)
	p.a.railNo(1).Script(fake.Script{})
	s := p.a.sums()
	bob := session(t, s, "bob", stats.Initiator)
	good, bad := bob.Links[0], bob.Links[1]
	require.Zero(t, good.Errors+good.Retries+good.Fences)
	require.EqualValues(t, 1, bad.Errors, "the other failures are consequences")
	require.Positive(t, bad.Flushed)
	require.EqualValues(t, 1, bad.Fences)
	require.Zero(t, bad.Stalls)
	require.EqualValues(t, 2, bad.Probes)
	require.Positive(t, bad.Retries)
	require.Equal(t, uint64(len(x.record().Ops()))+bad.Retries, bob.WorkRequests, "each operation once, and the failed ones again")
	require.GreaterOrEqual(t, bob.BytesWritten, uint64(size))
	x.release()

	theirs := session(t, p.b.snapshot(), "ann", stats.Target)
	require.EqualValues(t, 1, theirs.Links[1].Fences, "the target's endpoint was closed, too")
	require.Zero(t, theirs.Links[0].Fences)

	r := p.a.remote("bob")
	require.NoError(t, p.a.Disconnect("bob"))
	r.dropped(t)
	after := p.a.sums()
	var gone stats.Peer
	for _, q := range after.Peers {
		if q.Direction == stats.Initiator {
			gone = q
		}
	}
	require.Equal(t, "closed", gone.State)
	require.Equal(t, "closed", gone.Links[0].Phase)
	require.Equal(t, bob.BytesWritten, gone.BytesWritten)
	require.Equal(t, bob.WorkRequests, gone.WorkRequests)
	require.Equal(t, s.Rails[1].Retries, after.Rails[1].Retries)
	require.Equal(t, s.Rails[1].Fences, after.Rails[1].Fences)
	require.Equal(t, s.Rails[1].Errors, after.Rails[1].Errors, "a goodbye is no error")

	require.NoError(t, p.a.LoadConn("bob", p.b.Conn()))
	p.theirs = p.theirs.seenBy(p.a)
	p.allUp(2)
	p.a.whole(transfer.Write, p.mine.fill(2), p.theirs).run()
	again := p.a.sums()
	require.EqualValues(t, size, session(t, again, "bob", stats.Initiator).BytesWritten)
	require.Equal(t, bob.BytesWritten+size, again.Rails[0].BytesWritten+again.Rails[1].BytesWritten)

	require.NoError(t, p.a.Close())
	_, err := p.a.Snapshot()
	require.Equal(t, status.ErrBackend, status.Of(err))
	var file stats.Snapshot
	b, err := os.ReadFile(p.a.opt.StatsFile)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &file))
	require.Equal(t, again.Rails[1].BytesWritten, file.Rails[1].BytesWritten)
	require.Len(t, file.Peers, len(again.Peers))
	for _, q := range file.Peers {
		require.True(t, q.Ended())
	}
}
