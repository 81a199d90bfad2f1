package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"gorail/backend/errcode"
	"gorail/backend/provider"
	"gorail/backend/transfer"
	"gorail/test/fake"
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
			require.Equal(h, errcode.ErrBackend, errcode.StatusOf(call))
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

// lateClose is a provider whose endpoints call closing before they close. It imitates endpoints of stopped peers, which close
// slowly.
type lateClose struct {
	provider.Provider
	closing *atomic.Pointer[func()]
}

type lateRail struct {
	provider.Rail
	closing *atomic.Pointer[func()]
}

type lateEndpoint struct {
	provider.Endpoint
	closing *atomic.Pointer[func()]
}

func (p lateClose) Open(d provider.Device) (provider.Rail, error) {
	r, err := p.Provider.Open(d)
	return lateRail{r, p.closing}, err
}

func (r lateRail) OpenEndpoint() (provider.Endpoint, error) {
	ep, err := r.Rail.OpenEndpoint()
	return lateEndpoint{ep, r.closing}, err
}

func (e lateEndpoint) Close() error {
	if f := e.closing.Load(); f != nil {
		(*f)()
	}
	return e.Endpoint.Close()
}

// slowToClose makes ann with a session to each peer. ann's endpoints call closing before they close.
func (h *harness) slowToClose(closing *atomic.Pointer[func()], peers ...string) (a *agent, others []*agent) {
	h.wrap = func(p provider.Provider) provider.Provider { return lateClose{p, closing} }
	a = h.agent("ann")
	h.wrap = nil
	for _, name := range peers {
		b := h.agent(name)
		require.NoError(h, a.LoadConn(name, b.Conn()))
		a.connected(name)
		others = append(others, b)
	}
	return a, others
}

// Close closes the endpoints of all peers in parallel.
func TestCloseSideBySide(t *testing.T) {
	t.Parallel()
	names := []string{"bob", "cyd", "dan", "eve"}
	h := onFake(t, fake.TCPCaps())
	var closing atomic.Pointer[func()]
	a, _ := h.slowToClose(&closing, names...)
	var at sync.WaitGroup
	at.Add(len(names))
	together := func() { at.Done(); at.Wait() }
	closing.Store(&together)
	over := make(chan error, 1)
	go func() { over <- a.Close() }()
	until(t, "the engine is closed", func() bool {
		select {
		case err := <-over:
			require.NoError(t, err)
			return true
		default:
			return false
		}
	})
}

// The endpoint of a peer closes slowly. The call that ends the session returns, and another peer is loaded and notified meanwhile.
func TestSlowCloseHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	for what, let := range map[string]func(a, b *agent) error{
		"disconnect":   func(a, b *agent) error { return a.Disconnect("bob") },
		"new metadata": func(a, b *agent) error { return a.LoadConn("bob", b.Conn()) },
	} {
		t.Run(what, func(t *testing.T) {
			h := onFake(t, fake.TCPCaps())
			var closing atomic.Pointer[func()]
			a, _ := h.slowToClose(&closing, "bob")
			other, eve := h.agent("bob"), h.agent("eve")
			begun, release := make(chan struct{}, 100), make(chan struct{})
			wait := func() { begun <- struct{}{}; <-release }
			closing.Store(&wait)
			var once sync.Once
			free := func() { once.Do(func() { closing.Store(nil); close(release) }) }
			defer free()
			var step atomic.Value
			step.Store("end the session with bob")
			over := make(chan error, 1)
			go func() {
				over <- func() error {
					if err := let(a, other); err != nil {
						return err
					}
					<-begun
					step.Store("load eve")
					if err := a.LoadConn("eve", eve.Conn()); err != nil {
						return err
					}
					step.Store("notify eve")
					return a.Notify("eve", []byte("hello"))
				}()
			}()
			var err error
			ended := func() bool {
				select {
				case err = <-over:
					return true
				default:
					return false
				}
			}
			for end := time.Now().Add(patience); !ended(); time.Sleep(time.Millisecond) {
				require.True(t, time.Now().Before(end), "this step does not end: %v", step.Load())
			}
			require.NoError(t, err)
			eve.expect("ann:hello")
			free()
			if what == "new metadata" {
				require.NoError(t, a.Notify("bob", []byte("hello")))
				other.expect("ann:hello")
			}
		})
	}
}
