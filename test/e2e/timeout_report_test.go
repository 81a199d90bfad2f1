package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// oneReport requires one report of a timeout, with one outcome of the question to the peer. It returns the line of the outcome.
func oneReport(t *testing.T, w *worker.Worker) string {
	t.Helper()
	line := says(t, w, "level=ERROR", "timeout report: peer ", "peer=bob", "transfer=0x")
	n := map[string]int{}
	for _, l := range logged(w) {
		for _, text := range []string{`"timeout report: transfer"`, `"timeout report: peer"`, "timeout report: peer "} {
			if strings.Contains(l, text) {
				n[text]++
			}
		}
	}
	require.Equal(t, map[string]int{`"timeout report: transfer"`: 1, `"timeout report: peer"`: 1, "timeout report: peer ": 1}, n, w.Output())
	return line
}

// TestTimeoutReportOfPeer: the data connection of a transfer gets nothing through, and the control channel works. The report of the
// initiator has the target's counters. A target that was stopped shortly before says so.
func TestTimeoutReportOfPeer(t *testing.T) {
	t.Parallel()
	for name, stopped := range map[string]time.Duration{"alive": 0, "was stopped": 1500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ini, line := blocked(t, stopped)
			for tries := 1; strings.Contains(line, "did not answer") && tries < 5; tries++ {
				ini, line = blocked(t, stopped) // the host starves
			}
			for _, part := range []string{"timeout report: peer answered", "after=", "session=serving", "means=", "ticker_late=", "heard_ago=", "uptime=", "sessions=1",
				"transfers_in_flight=0", "notifications_sent=", "notifications_received=1", "bounce_buffers=0", "links=1"} {
				require.Contains(t, line, part)
			}
			if stopped > 0 {
				require.Contains(t, line, `means="the peer's process was stopped or starved of CPU time in the last 20 s"`)
			}
			says(t, ini, "timeout report: link at the peer", "peer=bob", "link=0", "state=up", "last_progress_ago=", "in_flight=", "credits=", "messages_received=")
		})
	}
}

// blocked is a WRITE between two hosts whose data connection a firewall blocks after a first WRITE. The target is stopped for a time
// before. blocked returns the initiator, and its line about the target.
func blocked(t *testing.T, stopped time.Duration) (*worker.Worker, string) {
	t.Helper()
	ha, hb := twoHosts(t)
	opts := []string{"xfer_timeout", "700ms", "cancel_timeout", "500ms", "peer_timeout", "20s", "devices", "fast0"}
	p := &pairOf{env: testenv.Need(t), ini: ha.start("alice", params(opts...)),
		tgt: hb.start("bob", params(append(opts, "control_port", "7000", "data_port", "7001-7009")...))}
	p.tgt.Polling(true)
	a, b := p.buffers(64 << 20)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
	x.Do(limit)
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	if stopped > 0 {
		p.tgt.Stop()
		time.Sleep(stopped) // this time is what the target tells
		p.tgt.Cont()
	}
	hb.block("0.0.0.0/0", 7001, 7009)
	require.False(t, x.Post().Failed())
	says(t, p.ini.Worker, "level=ERROR", "transfer timed out", "peer=bob", "code=GR-1042")
	line := oneReport(t, p.ini.Worker)
	require.True(t, x.Wait(limit).Failed())
	return p.ini.Worker, line
}

// TestTimeoutReportOfStoppedPeer: the target is stopped. The transfer ends in time, and the report says that the target did not answer.
func TestTimeoutReportOfStoppedPeer(t *testing.T) {
	t.Parallel()
	ours(t)
	p := pair(t, params("xfer_timeout", "700ms", "peer_timeout", "20s", "cancel_timeout", "500ms"))
	a, b := p.buffers(16 << 20)
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte("n")})
	x.Do(limit)
	require.Len(t, p.tgt.WaitNotifs(1, limit), 1)
	p.tgt.Stop()
	began := time.Now()
	require.False(t, x.Post().Failed())
	s := x.Wait(limit)
	took := time.Since(began)
	require.True(t, s.Failed(), "%s after %v", s, took)
	require.Less(t, took, testenv.Patient(3*time.Second))
	line := oneReport(t, p.ini.Worker)
	for _, part := range []string{"timeout report: peer did not answer", "within=1s", "heard_ago=", "stopped or starved of CPU time"} {
		require.Contains(t, line, part)
	}
	p.tgt.Cont()
	a.Fill(seedA)
	b.Fill(seedB)
	x.Do(limit) // the late answer does no harm
	a.Want(seedB)
	require.NotEmpty(t, p.tgt.WaitNotifs(1, limit))
}
