package engine

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gorail/backend/errcode"
	"gorail/backend/provider"
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

// Each call races the end of the engine: Close waits for the calls inside. Afterwards the engine refuses each call, and touches nothing that it has
// freed.
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
			for name, call := range taken {
				require.NoError(h, call(), name)
			}
			require.NoError(h, p.b.Close())
		}
	})
}

type failing struct{ provider.Provider }

func (failing) Discover(context.Context, provider.Filter) ([]provider.Device, error) {
	return nil, errcode.RailError.Errorf("out of memory")
}
