package engine

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
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

// calls are all calls of the application, with a prepared transfer that is not in flight. Those of the second list work, or do nothing, while
// the engine closes and after that.
func (p *pair) calls(r *request) (refused, taken map[string]func() error) {
	return map[string]func() error{
			"post":     func() error { _, err := p.a.Engine.Post(r.handle, true, []byte("n")); return err },
			"estimate": func() error { _, _, err := p.a.Estimate(r.handle); return err },
			"notify":   func() error { return p.a.Notify("bob", []byte("n")) },
			"prep": func() error {
				h, _, err := p.a.Prep(transfer.Write, []Desc{p.mine.desc(0, 64)}, []Desc{p.theirs.desc(0, 64)}, "bob")
				if err == nil {
					err = p.a.Release(h)
				}
				return err
			},
			"load":     func() error { return p.a.LoadConn("bob", p.b.Conn()) },
			"connect":  func() error { return p.a.Connect("bob") },
			"snapshot": func() error { _, err := p.a.Snapshot(); return err },
			"register": func() error { _, err := p.a.Register(p.mine.addr(), 64, 0, 0, nil); return err },
		}, map[string]func() error{
			"release":    func() error { return p.a.Release(r.handle) },
			"unload":     func() error { return p.a.UnloadRemote(0) },
			"disconnect": func() error { return p.a.Disconnect("bob") },
			"deregister": func() error { return p.a.Deregister(0) },
		}
}

// A closed engine refuses each call, and touches nothing that it has freed.
func TestCallsAfterClose(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		p := h.pair(4096)
		r := p.a.whole(transfer.Write, p.mine, p.theirs)
		r.run()
		require.NoError(h, p.a.Close())
		refused, taken := p.calls(r)
		for name, call := range refused {
			require.Equal(h, errcode.EngineClosed, errcode.Of(call()), name)
		}
		for name, call := range taken {
			require.NoError(h, call(), name)
		}
		require.NoError(h, p.b.Close())
	})
}

// Each call races the end of the engine: Close waits for the calls inside.
func TestCallsWhileClosing(t *testing.T) {
	t.Parallel()
	everywhere(t, func(h *harness) {
		for range rounds(1, 4) {
			p := h.pair(4096)
			r := p.a.whole(transfer.Write, p.mine, p.theirs)
			r.run()
			free := p.a.whole(transfer.Write, p.mine, p.theirs)
			var all sync.WaitGroup
			refused, taken := p.calls(r)
			for _, call := range refused {
				all.Go(func() {
					for errcode.Of(call()) != errcode.EngineClosed {
					}
				})
			}
			started := make(chan struct{})
			all.Go(func() {
				<-started
				assert.NoError(h, p.a.Release(free.handle))
				assert.NoError(h, taken["unload"]())
			})
			close(started)
			require.NoError(h, p.a.Close())
			all.Wait()
			require.NoError(h, p.b.Close())
		}
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
