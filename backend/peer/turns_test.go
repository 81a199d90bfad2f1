package peer

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/limits"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

// idler opens connections with the token, and leaves each where it is until the node closes it: after the Open, with a
// part of a ClientHello, after the ClientHello, or after TLS.
type idler func(c net.Conn, to wire.ConnBlob, challenge *wire.Challenge)

var idlers = map[string]idler{
	"after the open": func(c net.Conn, to wire.ConnBlob, challenge *wire.Challenge) { openByHand(c, to, challenge) },
	"within the ClientHello": func(c net.Conn, to wire.ConnBlob, challenge *wire.Challenge) {
		openByHand(c, to, challenge)
		_, _ = c.Write([]byte{22, 3, 1, 1, 0, 1})
	},
	"after the ClientHello": func(c net.Conn, to wire.ConnBlob, challenge *wire.Challenge) {
		_, _ = Connect(&halfway{Conn: c}, challenge, &to, config("").Key)
	},
	"after TLS": func(c net.Conn, to wire.ConnBlob, challenge *wire.Challenge) {
		_, _ = Connect(c, challenge, &to, config("").Key)
	},
}

func openByHand(c net.Conn, to wire.ConnBlob, challenge *wire.Challenge) {
	_ = wire.WriteFrame(c, &wire.Open{Version: wire.Version, Target: to.Engine, Mac: trust.OpenMac(to.Token, challenge.Nonce, to.Engine)})
}

// halfway is a connection that sends an Open and a ClientHello, and nothing more. It takes what comes.
type halfway struct {
	net.Conn
	writes int
}

func (h *halfway) Write(p []byte) (int, error) {
	if h.writes++; h.writes > 2 {
		_, err := h.Conn.Read(make([]byte, 1)) // until the node closes it
		return 0, err
	}
	return h.Conn.Write(p)
}

// idling is a node that so many idlers keep busy, and another node.
func idling(t *testing.T, idlers int, idle idler) *pair {
	p := &pair{i: newInitiator(), s: newTarget()}
	own := config("a")
	own.Limits = &limits.Counts{}
	p.to, p.from = newNode(own, p.s), newNode(config("b"), newTarget())
	dial := func() net.Conn {
		here, there := net.Pipe()
		p.to.admit(there)
		return here
	}
	p.from.dial = func(context.Context, netip.AddrPort) (net.Conn, error) { return dial(), nil }
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range idlers {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c := dial()
				if challenge, err := ReadChallenge(c); err == nil {
					idle(c, own.Identity, challenge)
					_, _ = c.Read(make([]byte, 1)) // until the node closes it
				}
				c.Close()
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	t.Cleanup(func() {
		close(stop)
		p.close()
		all.Wait()
		require.Zero(t, p.to.Stats().Stuck)
	})
	time.Sleep(time.Second)
	return p
}

// ready dials, and returns the time until the session is ready.
func (p *pair) ready(t *testing.T) time.Duration {
	to := p.to.cfg.Identity
	to.Control = []string{"127.0.0.1:1"}
	start := time.Now()
	p.from.Dial(to, 0, p.i)
	want[evOffers](t, p.i.events)
	want[evReady](t, p.i.events)
	return time.Since(start)
}

// Whoever has the token and opens connections that stay silent, at any step, hardly delays peers of the same address. The
// clock is that of synctest.
func TestSilentTokenHolders(t *testing.T) {
	t.Parallel()
	for name, idle := range idlers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := idling(t, 200, idle) // nobody is evicted
				assert.Less(t, p.ready(t), 300*time.Millisecond)
				assert.Zero(t, p.to.cfg.Limits.Read()["handshakes_waiting"])
			})
		})
	}
}

// If there are more of them than places, an honest peer is evicted now and then, and tries again.
func TestTokenHoldersFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := idling(t, 300, idlers["after the open"])
		for range 3 {
			assert.Less(t, p.ready(t), 10*time.Second)
		}
		assert.LessOrEqual(t, p.to.shown.HalfOpen(), 256)
		assert.Positive(t, p.to.cfg.Limits.Read()["handshakes_waiting"])
		assert.Equal(t, 3, int(p.to.Stats().Accepted))
	})
}

// A peer that has the token and is stopped within its handshake does not delay the news that another one has died: its handshake may last a minute.
func TestDeathBesideSilentTokenHolders(t *testing.T) {
	t.Parallel()
	for name, idle := range idlers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p := idling(t, 20, idle)
				p.ready(t)
				want[evHello](t, p.s.events)
				time.Sleep(p.to.cfg.reach())
				start := time.Now()
				p.from.dial = func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, syscall.ECONNREFUSED }
				vanish(p.from)
				want[evGone](t, p.s.events)
				assert.Less(t, time.Since(start), 2*time.Second)
			})
		})
	}
}
