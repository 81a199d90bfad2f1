package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/limits"
	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// A report of a timeout has at most twelve lines for each peer and second, and names what an operator needs, also what the peer sees.
func TestTimeoutReport(t *testing.T) {
	t.Parallel()
	h := onRails(t, 3, fake.TCPCaps())
	p := h.pair(1<<20, "xfer_timeout", "200ms", "qps_per_rail", "4")
	p.allUp(12)
	for _, link := range h.links {
		p.b.prov.Rail(link.Name).Stall()
	}
	var all []*request
	for range 5 {
		all = append(all, p.a.whole(transfer.Write, p.mine, p.theirs).post())
	}
	begun := time.Now()
	for _, x := range all {
		x.fails(errcode.TransferTimedOut.Status)
	}
	require.True(t, h.log.has("timeout report: transfer", "peer=bob", "op=WRITE", "bytes_left=1048576", "links=12", "last_progress_ago="))
	require.True(t, h.log.has("timeout report: peer", "peer=bob", "engine="+p.b.blob.Engine.String(), "control_addresses=", "session=ready", "heard_ago="))
	require.True(t, h.log.has("timeout report: link", "rail=fake/fake1", "peer_rail=fake/fake1", "state=up", "in_flight=", "credits=", "queued_transfers="))
	require.Equal(t, 5, h.log.count("transfer timed out"))
	reports := h.log.count("timeout report: transfer")
	require.LessOrEqual(t, reports, 1+int(time.Since(begun)/time.Second))
	require.Equal(t, 4*reports, h.log.count(`timeout report: link"`))

	outcomes := func() int {
		return h.log.count("timeout report: peer answered") + h.log.count("timeout report: peer did not answer") + h.log.count("timeout report: peer was not asked")
	}
	until(t, "each report has the peer's answer, or why there is none", func() bool { return outcomes() == reports })
	if h.log.count("timeout report: peer answered") > 0 { // else the host starves
		until(t, "the peer's lines", func() bool {
			return h.log.count("timeout report: link at the peer") == 4*h.log.count("timeout report: peer answered")
		})
		require.True(t, h.log.has("timeout report: peer answered", "peer=bob", "transfer=0x", "session=serving", "means=", "ticker_late=", "heard_ago=", "uptime=", "sessions=1",
			"transfers_in_flight=0", "notifications_received=", "links=12"), h.log)
		require.True(t, h.log.has("timeout report: link at the peer", "peer=bob", "link=", "state=up", "messages_received=", "credits="), h.log)
	}
}

// A peer whose control channel says nothing more gets one question, and the transfer does not wait for the answer.
func TestTimeoutReportWithoutAnswer(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	d := newDeceived(t, func(l *liar) {
		l.quiet(func(f wire.Frame) bool {
			_, question := f.(*wire.SnapshotReq)
			if question {
				asked <- struct{}{}
			}
			return question
		})
	}, "peer_timeout", "20s")
	require.Equal(t, int(status.Success), d.transfer(transfer.Write), "the liar hands all on")
	d.b.rail().Stall()
	require.Equal(t, int(errcode.TransferTimedOut.Status), d.transfer(transfer.Write))
	<-asked
	until(t, "the report says that nothing came", func() bool {
		return d.h.log.has("timeout report: peer did not answer", "peer=liar", "within=1s", "heard_ago=", "means=")
	})
	d.b.rail().Release()
}

// A peer that asks for snapshots all the time gets a few of them, and others still get theirs. Peers together get no more than the
// engine's limit.
func TestSnapshotsAreBounded(t *testing.T) {
	t.Parallel()
	const flood, peers, atOnce, ofEngine = 2000, 40, 4, 64
	h := onFake(t, fake.TCPCaps())
	a := h.agent("ann")
	to, offers := a.conn(), h.offer(a, 1)
	begun := time.Now()
	served := func(c *hostile, n int) (full int) {
		t.Helper()
		for i := range n {
			require.NoError(t, wire.WriteFrame(c, &wire.SnapshotReq{ID: uint64(i + 1)}))
		}
		var ids []uint64
		for range n {
			f := await[*wire.Snapshot](t, c)
			ids = append(ids, f.ID)
			if f.State == wire.SnapshotRefused {
				require.Zero(t, f.Uptime)
				require.Empty(t, f.Links)
				continue
			}
			require.Contains(t, []wire.SnapshotState{wire.SnapshotServing, wire.SnapshotBusy}, f.State)
			require.NotZero(t, f.Uptime)
			full++
		}
		slices.Sort(ids)
		require.Len(t, slices.Compact(ids), n, "one answer for each question")
		return full
	}
	rate := func(atOnce, aSecond int) int { return atOnce + aSecond*(1+int(time.Since(begun)/time.Second)) }
	full := served(enters(t, to, strangerKey(0), 1, offers), flood)
	require.Positive(t, full)
	require.LessOrEqual(t, full, rate(atOnce, 1))
	require.EqualValues(t, flood-full, a.limited(limits.Snapshots))
	all := full
	for i := 1; i < peers; i++ {
		all += served(enters(t, to, strangerKey(i), 1, offers), atOnce)
	}
	require.Greater(t, all, full, "others get theirs")
	require.LessOrEqual(t, all, rate(ofEngine, ofEngine))
}

// A late tick is remembered for ten seconds at least, and forgotten after twenty. A tick that is still to come counts.
func TestLateness(t *testing.T) {
	var l lateness
	now := time.Now()
	require.Zero(t, l.most(now), "no ticker runs yet")
	tick := func(late time.Duration) {
		now = now.Add(time.Second)
		l.awaits(now.Add(-time.Second), now)
		now = now.Add(late)
		l.came(now)
	}
	tick(0)
	l.awaits(now, now.Add(time.Second))
	require.Zero(t, l.most(now))
	require.Equal(t, 5*time.Second, l.most(now.Add(6*time.Second)), "it is late now")
	tick(3 * time.Second)
	for range 10 {
		tick(0)
		require.Equal(t, 3*time.Second, l.most(now))
	}
	for range 12 {
		tick(time.Millisecond)
	}
	require.Equal(t, time.Millisecond, l.most(now))
	l.awaits(now, now.Add(time.Second))
	now = now.Add(3 * time.Second)
	l.awaits(now, now.Add(time.Second))
	require.Equal(t, 2*time.Second, l.most(now), "something else came before the tick")
}
