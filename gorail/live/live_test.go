package live

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/stats"
)

// engine answers with what the test gives it.
type engine struct {
	live  stats.Live
	trace stats.Trace
	stuck chan struct{} // not nil: it does not answer until the test closes it
}

func (e *engine) Live() (stats.Live, error) {
	if e.stuck != nil {
		<-e.stuck
	}
	return e.live, nil
}

func (e *engine) Trace(ctx context.Context, d time.Duration) (stats.Trace, error) {
	if e.stuck != nil {
		<-e.stuck
	}
	e.trace.Seconds = d.Seconds()
	return e.trace, nil
}

func snapshot(agent string, at time.Time, written, done uint64) stats.Live {
	return stats.Live{Process: stats.Process{PID: 7, Host: "h", Command: "python3", Version: "1.2.3", Started: at.Add(-time.Hour).Round(time.Hour), Now: at},
		Snapshot: stats.New(agent, []stats.Rail{{Name: "tcp/eth0", Counts: stats.Counts{BytesWritten: written}, Idle: stats.Never,
			Times: []stats.Times{{Most: 4096, Buckets: []uint64{1, 98, 1}}, {Buckets: []uint64{0, 0, 0, 100}}}}},
			[]stats.Peer{{Agent: "bob", Session: 3, State: "ready", Links: []stats.Link{{Rail: "tcp/eth0", Phase: "working", Counts: stats.Counts{BytesWritten: written}}}}}),
		Core: map[string]uint64{"transfers_done": done}}
}

func serve(t *testing.T, folder, id string, e *engine) {
	s, err := stats.Listen(folder, id, e, nil)
	require.NoError(t, err)
	t.Cleanup(s.Close)
}

// Engines answer in the order of their names. One that does not answer is named, and a dead one is left out.
func TestRead(t *testing.T) {
	folder := t.TempDir()
	stuck := &engine{stuck: make(chan struct{})}
	serve(t, folder, "1", &engine{live: snapshot("zoe", time.Now(), 0, 0)})
	serve(t, folder, "2", stuck)
	t.Cleanup(func() { close(stuck.stuck) })
	serve(t, folder, "3", &engine{live: snapshot("ann", time.Now(), 0, 0)})
	l, err := stats.Listen(folder, "4", &engine{}, nil)
	require.NoError(t, err)
	path := l.Path()
	require.NoError(t, os.Link(path, path+".kept"))
	l.Close()
	require.NoError(t, os.Rename(path+".kept", path), "as a killed process leaves it")
	engines, err := Source{Folder: folder}.Read(context.Background())
	require.NoError(t, err)
	require.Len(t, engines, 3)
	require.Equal(t, []string{"ann", "zoe"}, []string{engines[0].Agent, engines[1].Agent})
	require.Contains(t, engines[2].Error, "no answer: the process is stopped")
	engines, err = Source{Folder: folder, Agent: "zoe"}.Read(context.Background())
	require.NoError(t, err)
	require.Len(t, engines, 1)
	_, err = Source{Folder: filepath.Join(folder, "no")}.Read(context.Background())
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestTables(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l := snapshot("ann", now, 3<<30, 1)
	l.Transfers = []stats.Transfer{{Peer: "bob", Op: "READ", State: stats.IsQueued, Bytes: 2 << 20, Left: 1 << 20, Age: 61, Idle: stats.Since(1500 * time.Millisecond), Rails: []string{"tcp/eth0"}}}
	l.LeftOut = 3
	engines := []Engine{{Socket: "/run/x", Live: &l}, {Socket: "/run/y", Error: "no answer"}}
	var out bytes.Buffer
	require.NoError(t, WriteStats(&out, engines, nil))
	for _, part := range []string{"agent ann: python3, process 7 on h, version 1.2.3", "tcp/eth0", "3GiB", "never", "<8µs", "bob", "/run/y: no answer"} {
		require.Contains(t, out.String(), part)
	}
	require.NotContains(t, out.String(), "WRITE/s")
	l.Peers[0].Agent = "\x1b[2Jbob"
	out.Reset()
	require.NoError(t, WriteStats(&out, engines, nil))
	require.Contains(t, out.String(), "?[2Jbob", "a peer's name does not control the terminal")
	out.Reset()
	require.NoError(t, WriteTransfers(&out, engines))
	for _, part := range []string{"READ", "queued", "2MiB", "1MiB", "1m1s", "1.5s", "and 3 more"} {
		require.Contains(t, out.String(), part)
	}
}

// Transfers that overlap have lanes of their own, and a free lane is used again.
func TestChrome(t *testing.T) {
	folder, now := t.TempDir(), time.Now()
	x := func(begin, end float64) stats.TracedTransfer {
		return stats.TracedTransfer{Peer: "bob", Op: "WRITE", Bytes: 1000, Begin: begin, End: end, Status: "NIXL_SUCCESS"}
	}
	e := &engine{trace: stats.Trace{Agent: "ann", Process: stats.Process{PID: 7, Now: now}, Transfers: []stats.TracedTransfer{x(5, 9), x(0, 10), x(10, 11)},
		Lines: []stats.Line{{Time: now.Add(4 * time.Microsecond), Level: "info", Text: "rail fenced"}}, Lost: 2}}
	serve(t, folder, "1", e)
	traces, err := Source{Folder: folder}.Trace(context.Background(), time.Second)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, WriteChrome(&out, traces))
	var doc struct{ TraceEvents []event }
	require.NoError(t, json.Unmarshal(out.Bytes(), &doc))
	var lanes []int
	for _, v := range doc.TraceEvents {
		if v.Phase == "X" {
			lanes = append(lanes, v.TID)
			require.Equal(t, "WRITE bob", v.Name)
		}
	}
	require.Equal(t, []int{1, 2, 1}, lanes)
	last := doc.TraceEvents[len(doc.TraceEvents)-1]
	require.Equal(t, event{Name: "rail fenced", Phase: "i", TS: 4, PID: 1, Scope: "p", Args: map[string]any{"level": "info"}}, last)
}
