package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/errcode"
	"gorail/backend/limits"
	"gorail/backend/stats"
	"gorail/backend/transfer"
	"gorail/backend/wire"
	"gorail/test/fake"
)

// ask sends a request to the engine's socket and decodes the answer.
func (a *agent) ask(request string, answer any) {
	a.t.Helper()
	c, err := net.Dial("unix", a.socket.Path())
	require.NoError(a.t, err)
	defer c.Close()
	_, err = io.WriteString(c, request+"\n")
	require.NoError(a.t, err)
	require.NoError(a.t, json.NewDecoder(c).Decode(answer))
}

// A reader of the socket sees the transfers in flight, the times of earlier ones, and the last warnings.
func TestLive(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "run")
	h := onFake(t, fake.TCPCaps())
	p := h.pair(1<<20, "stats_socket", folder)
	w := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	w.run("one")
	var l stats.Live
	p.a.ask("snapshot", &l)
	require.Equal(t, os.Getpid(), l.PID)
	require.Equal(t, "ann", l.Agent)
	require.Empty(t, l.Transfers)
	require.Len(t, l.Rails[0].Times, 1)
	require.EqualValues(t, 1, l.Rails[0].Times[0].Count())
	require.GreaterOrEqual(t, l.Rails[0].Idle, stats.Since(0))
	require.EqualValues(t, 1, l.Core["transfers_done"])
	s := sessionOf(t, l.Snapshot, "bob", stats.Initiator)
	require.Positive(t, s.Links[0].Credits)
	require.Positive(t, s.Session)

	p.b.rail().Stall()
	w.post()
	p.a.ask("snapshot", &l)
	require.Len(t, l.Transfers, 1)
	x := l.Transfers[0]
	require.Equal(t, []any{"bob", "WRITE", stats.IsPosted, uint64(1 << 20)}, []any{x.Peer, x.Op, x.State, x.Bytes})
	require.Positive(t, x.Age)
	require.Positive(t, x.Left)
	require.Positive(t, sessionOf(t, l.Snapshot, "bob", stats.Initiator).Links[0].Ops)
	p.b.rail().Release()
	w.wait()

	p.a.log.Warn("a warning", "of", 1)
	p.a.ask("snapshot", &l)
	require.Contains(t, l.Log[len(l.Log)-1].Text, "a warning")
	path := p.a.socket.Path()
	require.NoError(t, p.a.Close())
	require.NoFileExists(t, path)
	_, err := p.a.Live()
	require.Error(t, err)
}

// A trace has the transfers and the log lines of its time, and ends with the engine.
func TestTraceOfEngine(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(1 << 20)
	w := p.a.whole(transfer.Write, p.mine.fill(1), p.theirs)
	w.run()
	ctx, stop := context.WithCancel(context.Background())
	traced := make(chan stats.Trace)
	go func() {
		tr, err := p.a.Trace(ctx, time.Minute)
		require.NoError(t, err)
		traced <- tr
	}()
	until(t, "the trace has begun", p.a.tap.Tracing)
	w.run()
	p.a.log.Info("said meanwhile")
	stop()
	tr := <-traced
	require.NotEmpty(t, tr.Transfers)
	x := tr.Transfers[len(tr.Transfers)-1]
	require.Equal(t, []any{"bob", "WRITE", uint64(1 << 20), "NIXL_SUCCESS"}, []any{x.Peer, x.Op, x.Bytes, x.Status})
	require.Equal(t, []string{p.a.rails.List[0].Name()}, x.Rails)
	require.Less(t, x.Begin, x.End)
	require.Contains(t, tr.Lines[len(tr.Lines)-1].Text, "said meanwhile")
}

// Without a folder for its socket an engine works, and says why there is none.
func TestNoSocket(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	p := h.pair(4096, "stats_socket", "/proc/no")
	require.Nil(t, p.a.socket)
	require.True(t, h.log.has("no socket for gorail top", "level=WARN", "/proc/no", "mkdir -p -m 1777 /proc/no"))
	p.works()
}

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
		if p.Moves != nil {
			p.Moves.Age = 0
		}
	}
	return s
}

// session returns the counters of the one session with a peer that has not ended.
func sessionOf(t testing.TB, s stats.Snapshot, peer string, d stats.Direction) stats.Peer {
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
	bob := sessionOf(t, s, "bob", stats.Initiator)
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
	ann := sessionOf(t, p.b.sums(), "ann", stats.Target)
	require.EqualValues(t, 3, ann.MessagesReceived)
	require.Zero(t, ann.BytesWritten+ann.BytesRead+ann.WorkRequests, "the initiator's counters have its WRITEs and READs")
	require.Eventually(t, func() bool {
		m := sessionOf(t, p.b.snapshot(), "ann", stats.Target).Moves
		return m.Written == size && m.Read == size
	}, 20*time.Second, time.Millisecond, "its pings say so")
	require.Nil(t, bob.Moves)
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
	bob := sessionOf(t, s, "bob", stats.Initiator)
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

	theirs := sessionOf(t, p.b.snapshot(), "ann", stats.Target)
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
	require.EqualValues(t, size, sessionOf(t, again, "bob", stats.Initiator).BytesWritten)
	require.Equal(t, bob.BytesWritten+size, again.Rails[0].BytesWritten+again.Rails[1].BytesWritten)

	require.NoError(t, p.a.Close())
	_, err := p.a.Snapshot()
	require.Equal(t, errcode.ErrBackend, errcode.StatusOf(err))
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
	require.Equal(t, int(errcode.Success), d.transfer(transfer.Write), "the liar hands all on")
	d.b.rail().Stall()
	require.Equal(t, int(errcode.TransferTimedOut.Status), d.transfer(transfer.Write))
	defer d.b.rail().Release()
	until(t, "the report says that nothing came", func() bool { // where the host starves, the control connection is being replaced: the question may still wait
		return d.h.log.has("timeout report: peer did not answer", "peer=liar", "within=1s", "heard_ago=", "means=") ||
			d.h.log.has("timeout report: peer was not asked", "peer=liar")
	})
	require.LessOrEqual(t, len(asked), 1)
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
