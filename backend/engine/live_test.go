package engine

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake"
	"gorail/backend/stats"
	"gorail/backend/transfer"
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
	s := session(t, l.Snapshot, "bob", stats.Initiator)
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
	require.Positive(t, session(t, l.Snapshot, "bob", stats.Initiator).Links[0].Ops)
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
	require.True(t, h.log.has("no socket for gorail top", "level=WARN"))
	p.works()
}
