package live

import (
	"context"
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
	s, err := stats.Listen(folder, id, stats.Source{Live: e.Live, Trace: e.Trace}, nil)
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
	l, err := stats.Listen(folder, "4", stats.Source{Live: (&engine{}).Live}, nil)
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
