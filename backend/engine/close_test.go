package engine

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gorail/backend/errcode"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/fake"
	"gorail/backend/status"
	"gorail/backend/transfer"
)

// An engine closes while transfers, released transfers and notifications are in flight. One peer's fabric hangs, and one
// peer is not connected yet. No goroutine is left. The harness checks that the fabric is empty.
func TestCloseInFlight(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("", closeInFlight)
	goleak.VerifyNone(t, before)
}

func closeInFlight(t *testing.T) {
	everywhere(t, func(h *harness) {
		p := h.pair(8<<20, "release_wait", "0", "notif_queue", "64KiB")
		c := h.agent("cat")
		g := h.gate(c)
		require.NoError(h, p.a.LoadConn("cat", g.blob))
		far := c.memory(4096).seenBy(p.a)
		p.a.connected("bob")
		if p.b.prov != nil {
			p.b.rail().Stall()
		}
		for i := range 4 {
			p.a.whole(i%2, p.mine, p.theirs).post("n")
			p.a.whole(i%2, p.mine, p.theirs).post("n").release()
		}
		p.a.prep(transfer.Write, []Desc{p.mine.desc(0, 4096)}, []Desc{far.desc(0, 4096)}, "cat").post("waits")
		for p.a.Notify("bob", make([]byte, 5000)) == nil {
		}
		require.NoError(h, p.a.Notify("cat", []byte("waits too")))
		require.NoError(h, p.a.Close())
		require.NoError(h, p.a.Close(), "the second Close")
		for _, call := range []error{p.a.Notify("bob", nil), p.a.LoadConn("bob", p.b.Conn())} {
			require.Equal(h, status.ErrBackend, status.Of(call))
			require.ErrorContains(h, call, "closed")
		}
		_, err := p.a.Register(4096, 4096, 0, 0, nil)
		require.ErrorContains(h, err, "closed")
		if p.b.prov != nil {
			p.b.rail().Release()
		}
		require.NoError(h, p.b.Close())
		require.NoError(h, c.Close())
		g.end()
	})
}

// Both sides close at the same time during a transfer.
func TestCloseTogether(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		for range 5 {
			p := h.pair(1 << 20)
			p.a.whole(transfer.Write, p.mine, p.theirs).post("x")
			require.NoError(h, p.b.Notify("ann", make([]byte, 100_000)))
			var wg sync.WaitGroup
			wg.Go(func() { p.a.Close() })
			wg.Go(func() { p.b.Close() })
			wg.Wait()
		}
	})
}

func TestManyEngines(t *testing.T) {
	h := onFake(t, fake.TCPCaps())
	files := openFiles(t)
	for range 100 {
		p := h.pair(4096)
		p.a.whole(transfer.Write, p.mine.fill(1), p.theirs).run("x")
		p.same()
		require.NoError(t, p.a.Close())
		require.NoError(t, p.b.Close())
	}
	require.LessOrEqual(t, openFiles(t), files+2)
}

func openFiles(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}

// A provider finds no device, or its rails do not open. The error names the cause, and nothing stays open.
func TestNewFails(t *testing.T) {
	t.Parallel()
	f := fake.NewFabric(1)
	defer func() { require.NoError(t, f.Close()) }()
	bad := fake.TCPCaps()
	bad.KeySize = 99
	for want, prov := range map[string]provider.Provider{
		"devices=nosuch":            f.Provider(),
		"no rail could be opened":   f.Provider(fake.Link{Name: "nosuch", Caps: bad}),
		"find rails: out of memory": failing{},
	} {
		opt, _, err := option.Parse(map[string]string{"devices": "nosuch"}, nil)
		require.NoError(t, err)
		_, err = New(Config{Agent: "ann", Options: opt, Provider: prov, Log: slog.New(&logLines{})})
		require.Equal(t, status.ErrBackend, status.Of(err))
		require.ErrorContains(t, err, want)
	}
}

type failing struct{ provider.Provider }

func (failing) Discover(context.Context, provider.Filter) ([]provider.Device, error) {
	return nil, errcode.RailError.Errorf("out of memory")
}

func TestStatsFile(t *testing.T) {
	t.Parallel()
	h := onFake(t, fake.TCPCaps())
	file := filepath.Join(t.TempDir(), "stats.json")
	a := h.agent("ann", "stats_file", file)
	m := a.memory(4096)
	a.whole(transfer.Write, m, m).run()
	require.NoError(t, a.Close())
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(b), `"write_bytes": 4096`)
	require.Contains(t, string(b), `"agent": "ann"`)
}
