package engine

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/backend/provider/fake"
)

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
