package peer

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// Silent or very slow connections hold a place until the deadline at most, and for less time if other connections
// wait.
func TestSlowLoris(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTarget()
		cfg := config("target")
		cfg.ConnectTimeout = 10 * time.Second
		n := newNode(cfg, s)
		n.limiter = newLimiter(Limits{HalfOpen: 4, MinAge: time.Second, Burst: 64, Refill: 8, Sources: 8})
		defer n.Close()
		var loris sync.WaitGroup
		defer loris.Wait()
		slow := func() {
			here, there := net.Pipe()
			n.admit(there)
			loris.Go(func() {
				defer here.Close()
				if _, err := wire.ReadFrame(here, 0); err != nil {
					return
				}
				for _, err := here.Write([]byte{0}); err == nil; _, err = here.Write([]byte{0}) {
					time.Sleep(3 * time.Second)
				}
			})
		}
		for range 4 {
			slow()
		}
		synctest.Wait()
		assert.Equal(t, uint64(4), n.Stats().HalfOpen)

		start := time.Now()
		here, there := net.Pipe()
		defer here.Close()
		n.admit(there) // waits for a place
		_, answer := handshakeByHand(t, here, n.cfg.Identity)
		require.IsType(t, &wire.Welcome{}, answer)
		assert.Equal(t, time.Second, time.Since(start), "one is evicted once it is old enough")
		want[evHello](t, s.events)
		assert.Equal(t, uint64(1), n.Stats().MadeRoom)

		time.Sleep(10 * time.Second)
		assert.Zero(t, n.Stats().HalfOpen, "the deadline ends the others")
		assert.Equal(t, uint64(4), n.Stats().MadeRoom+n.Stats().TimedOut+n.Stats().BadFrame)
	})
}

// exhausted is a listener in a process without descriptors.
type exhausted struct {
	net.Listener
	calls int
}

func (e *exhausted) Accept() (net.Conn, error) { e.calls++; return nil, syscall.EMFILE }
func (e *exhausted) Addr() net.Addr            { return &net.TCPAddr{} }
func (e *exhausted) Close() error              { return nil }

func TestAcceptBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(Config{}, newTarget())
		l := new(exhausted)
		n.listeners = []net.Listener{l}
		n.spawn(func() { n.accept(l) })
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Less(t, l.calls, 70)
		assert.Greater(t, l.calls, 60)
		assert.Equal(t, uint64(l.calls), n.Stats().AcceptErrors)
		n.Close()
	})
}

func TestListen(t *testing.T) {
	for _, bad := range []string{"", "localhost:1", "0.0.0.0:0", "[::]:0", "192.0.2.77:0"} {
		_, err := NewNode(Config{Listen: []string{"127.0.0.1:0", bad}}, newTarget())
		require.ErrorIs(t, err, ErrListen)
		assert.ErrorContains(t, err, bad)
	}
	n, err := NewNode(Config{Listen: []string{"127.0.0.1:0", "127.0.0.2:0"}}, newTarget())
	require.NoError(t, err)
	defer n.Close()
	require.Len(t, n.Addrs(), 2)
	_, err = NewNode(Config{Listen: n.Addrs()[1:]}, newTarget())
	var errno syscall.Errno
	assert.True(t, errors.As(err, &errno) && errno == syscall.EADDRINUSE)
}

// A node that closes does not wait for handshakes of TLS that are under way.
func TestCloseDuringTLS(t *testing.T) {
	n := listen(t, newTarget())
	c := fakePeer(t, n)
	challenge, err := ReadChallenge(c)
	require.NoError(t, err)
	to := blob(n)
	require.NoError(t, wire.WriteFrame(c, &wire.Open{Version: wire.Version, Target: to.Engine, Mac: trust.OpenMac(to.Token, challenge.Nonce, to.Engine)}))
	eventually(t, func() bool { return n.Stats().HalfOpen == 0 && n.shown.HalfOpen() == 1 }, "the target waits for a ClientHello")
	n.Close()
	assert.Zero(t, n.Stats().Stuck)
}
