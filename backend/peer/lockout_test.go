package peer

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// flood attacks a node from the address that honest peers use. It holds some silent connections, and opens rate more
// per second: half of these send garbage, and half are silent.
func flood(t *testing.T, n *Node, held, rate int) {
	t.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	t.Cleanup(func() { close(stop); wg.Wait() })
	hold := func() {
		c, err := net.Dial("tcp", n.Addrs()[0])
		if err != nil {
			return
		}
		wg.Go(func() {
			<-stop
			c.Close()
		})
	}
	for range held {
		hold()
	}
	wg.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			c, err := net.Dial("tcp", n.Addrs()[0])
			if err != nil {
				continue
			}
			wg.Go(func() {
				defer c.Close()
				if i%2 == 0 {
					_, _ = c.Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
				}
				_ = c.SetDeadline(time.Now().Add(3 * time.Second))
				ended := make(chan struct{})
				defer close(ended)
				wg.Go(func() {
					select {
					case <-stop:
						_ = c.SetDeadline(time.Now())
					case <-ended:
					}
				})
				_, _ = io.Copy(io.Discard, c) // until the node closes it, or later
			})
		}
	})
}

// Bad connections do not lock out honest peers of the same address.
func TestHonestPeersAmongBadOnes(t *testing.T) {
	const honest = 20
	s := newTarget()
	to, from := listen(t, s), listen(t, newTarget(), func(c *Config) { c.ConnectTimeout = 10 * time.Second })
	flood(t, to, 64, 700)
	eventually(t, func() bool { return to.Stats().BadFrame > 100 && to.Stats().MadeRoom > 0 }, "the flood is under way, and all places are taken")
	for range honest {
		i := newInitiator()
		out := from.Dial(blob(to), 0, i)
		want[evOffers](t, i.events)
		want[evReady](t, i.events)
		require.Equal(t, Ready, out.State())
	}
	assert.Equal(t, uint64(honest), to.Stats().Accepted)
	t.Logf("%+v", to.Stats())
}

// Unauthenticated handshakes have a bounded number of places. An initiator with the token gets in although all are
// taken.
func TestPlacesAreTaken(t *testing.T) {
	s := newTarget()
	to := listen(t, s)
	conns := make([]net.Conn, 2*Default.HalfOpen)
	for k := range conns {
		conns[k] = fakePeer(t, to)
		_, err := wire.ReadFrame(conns[k], 0)
		require.NoError(t, err)
	}
	require.LessOrEqual(t, to.Stats().HalfOpen, uint64(Default.HalfOpen))
	i := newInitiator()
	from := listen(t, newTarget())
	from.Dial(blob(to), 0, i)
	want[evOffers](t, i.events)
	want[evReady](t, i.events)
	assert.GreaterOrEqual(t, to.Stats().MadeRoom, uint64(Default.HalfOpen))
}

// An unproved answer does not end a dial while another address may send a Welcome, in any order of addresses.
func TestHintsEndNoDial(t *testing.T) {
	challenge := &wire.Challenge{Version: wire.Version}
	hello := func(c net.Conn) {
		_ = wire.WriteFrame(c, challenge)
		_, _ = wire.ReadFrame(c, 0)
	}
	for name, serve := range map[string]func(net.Conn){
		"internal error":      func(c net.Conn) { hello(c); _ = wire.WriteFrame(c, &wire.Reject{Code: wire.CodeInternal}) },
		"no rails":            func(c net.Conn) { hello(c); _ = wire.WriteFrame(c, &wire.Reject{Code: wire.CodeRails}) },
		"wrong token":         func(c net.Conn) { hello(c); _ = wire.WriteFrame(c, &wire.Reject{Code: wire.CodeToken}) },
		"another engine":      func(c net.Conn) { hello(c); _ = wire.WriteFrame(c, &wire.Reject{Code: wire.CodeEngine}) },
		"another version":     func(c net.Conn) { _ = wire.WriteFrame(c, &wire.Challenge{Version: 99}) },
		"an unproved welcome": func(c net.Conn) { hello(c); _ = wire.WriteFrame(c, &wire.Welcome{}) },
		"another frame":       func(c net.Conn) { hello(c); _ = wire.WriteFrame(c, &wire.Ping{}) },
		"no answer": func(c net.Conn) {
			hello(c)
			_ = c.SetReadDeadline(time.Now().Add(testTimeout))
			_, _ = c.Read(make([]byte, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			i, s := newInitiator(), newTarget()
			to := listen(t, s)
			from := listen(t, newTarget(), func(c *Config) { c.ConnectTimeout = 2 * time.Second })
			b := blob(to)
			b.Control = append(impostor(t, serve).Control, b.Control...)
			from.Dial(b, 0, i)
			want[evOffers](t, i.events)
			want[evReady](t, i.events)
		})
	}
}

// An address that refuses, and accepts the next try, has not refused for long enough.
func TestHintIsTriedAgain(t *testing.T) {
	for name, code := range map[string]wire.Code{"internal error": wire.CodeInternal, "another engine": wire.CodeEngine} {
		t.Run(name, func(t *testing.T) {
			i, s := newInitiator(), newTarget()
			to, from := listen(t, s), listen(t, newTarget())
			path := newProxy(t, to)
			rejects := 2
			b := blob(to)
			b.Control = impostor(t, func(c net.Conn) {
				if rejects--; rejects < 0 {
					there, err := net.Dial("tcp", path.l.Addr().String())
					if err == nil {
						go func() { _, _ = io.Copy(there, c); there.Close() }()
						_, _ = io.Copy(c, there)
					}
					return
				}
				_ = wire.WriteFrame(c, &wire.Challenge{Version: wire.Version})
				_, _ = wire.ReadFrame(c, 0)
				_ = wire.WriteFrame(c, &wire.Reject{Code: code})
			}).Control
			out := from.Dial(b, 0, i)
			want[evOffers](t, i.events)
			want[evReady](t, i.events)
			out.Close("enough")
			want[evHello](t, s.events)
			want[evGone](t, s.events)
		})
	}
}

// One address that rejects a Resume, or refuses, does not end a session whose peer answers at another address.
func TestHintsEndNoSession(t *testing.T) {
	for name, code := range map[string]wire.Code{"no such session": wire.CodeSession, "wrong token": wire.CodeToken,
		"internal error": wire.CodeInternal, "no rails": wire.CodeRails} {
		t.Run(name, func(t *testing.T) {
			r := &multipath{pair: &pair{i: newInitiator(), s: newTarget()}}
			r.to, r.from = listen(t, r.s, minute), listen(t, newTarget(), minute)
			path := newProxy(t, r.to)
			b := blob(r.to)
			liar := impostor(t, func(c net.Conn) {
				_ = wire.WriteFrame(c, &wire.Challenge{Version: wire.Version})
				_, _ = wire.ReadFrame(c, 0)
				_ = wire.WriteFrame(c, &wire.Reject{Code: code})
			})
			b.Control = append([]string{path.l.Addr().String()}, liar.Control...)
			r.dial(t, b)
			path.cut()
			r.works(t)
			r.resumed(t, 1)
		})
	}
}

// The only address sends unproved Rejects for a while. The session goes on with the first good answer.
func TestRejectForAWhileEndsNoSession(t *testing.T) {
	r := &multipath{pair: &pair{i: newInitiator(), s: newTarget()}}
	r.to, r.from = listen(t, r.s, minute), listen(t, newTarget(), minute)
	path := newProxy(t, r.to)
	b := blob(r.to)
	first, rejects := true, 2
	b.Control = impostor(t, func(c net.Conn) {
		if !first && rejects > 0 {
			rejects--
			_ = wire.WriteFrame(c, &wire.Challenge{Version: wire.Version})
			_, _ = wire.ReadFrame(c, 0)
			_ = wire.WriteFrame(c, &wire.Reject{Code: wire.CodeSession, Text: "forged"})
			return
		}
		first = false
		there, err := net.Dial("tcp", path.l.Addr().String())
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(there, c); there.Close() }()
		_, _ = io.Copy(c, there)
	}).Control
	r.dial(t, b)
	path.cut()
	r.works(t)
	r.resumed(t, 1)
	r.out.Close("enough")
	want[evGone](t, r.s.events)
	require.Zero(t, rejects)
}
