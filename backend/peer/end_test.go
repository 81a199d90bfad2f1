package peer

import (
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// byHand makes a session with a target; its initiator is a bare connection.
func byHand(t *testing.T, s *target, change ...func(*Config)) (*SecureConn, *In) {
	to := listen(t, s, change...)
	c, f := handshakeByHand(t, fakePeer(t, to), blob(to))
	require.IsType(t, &wire.Welcome{}, f)
	return c, want[evHello](t, s.events).in
}

func TestPeerVanishes(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*SecureConn)
		want error
		text string
	}{
		{"EOF", func(c *SecureConn) { c.Close() }, ErrDropped, "process ended"},
		{"RST", func(c *SecureConn) { _ = c.NetConn().(*net.TCPConn).SetLinger(0); c.Close() }, ErrDropped, "by hand"},
		{"half a frame", func(c *SecureConn) { _, _ = c.Write([]byte{0, 0, 0, 9, byte(wire.TypeFence), 1}); c.Close() }, ErrDropped, ""},
		{"garbage", func(c *SecureConn) { _, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n")) }, ErrProtocol, ""},
		{"frame too large", func(c *SecureConn) { _, _ = c.Write([]byte{0xff, 0xff, 0xff, 0xff, byte(wire.TypeKeysReq)}) }, ErrProtocol, "at most"},
		{"BYE", func(c *SecureConn) { _ = wire.WriteFrame(c, &wire.Bye{Text: "going home"}) }, ErrPeerClosed, "): going home"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newTarget()
			conn, in := byHand(t, s, func(c *Config) { c.PeerTimeout = 200 * time.Millisecond }) // nobody resumes
			c.end(conn)
			gone := want[evGone](t, s.events)
			assert.Same(t, in, gone.in)
			assert.ErrorIs(t, gone.err, c.want)
			assert.ErrorContains(t, gone.err, c.text)
			assert.Equal(t, Lost, in.State())
		})
	}
}

// vanish ends a node as the kernel ends a killed process: without a Bye.
func vanish(n *Node) {
	for _, l := range n.listeners {
		l.Close()
	}
	r := n.sessions
	r.mu.Lock()
	sessions := slices.Collect(maps.Keys(r.all))
	r.mu.Unlock()
	for _, s := range sessions {
		s.Abort()
	}
}

func TestClose(t *testing.T) {
	t.Run("by the initiator", func(t *testing.T) {
		p := newPair(t)
		p.out.Keys(1, ranges(1, 0))
		p.out.Close("no more work")
		assert.Equal(t, Closed, p.out.State())
		err := want[evGone](t, p.s.events).err
		assert.ErrorIs(t, err, ErrPeerClosed)
		assert.ErrorContains(t, err, "no more work")
		p.from.Close()
		assert.NotContains(t, drain(p.i.events), "Lost")
	})
	t.Run("by the target", func(t *testing.T) {
		p := newPair(t)
		p.in.Close("agent disconnected")
		assert.ErrorIs(t, want[evGone](t, p.s.events).err, ErrClosed)
		err := want[evLost](t, p.i.events).err
		assert.ErrorIs(t, err, ErrPeerClosed)
		assert.ErrorContains(t, err, "agent disconnected")
	})
	t.Run("of the target's node", func(t *testing.T) {
		p := newPair(t)
		p.to.Close()
		assert.ErrorIs(t, want[evGone](t, p.s.events).err, ErrClosed)
		// The Bye is lost when our last frames reach a closed socket. The connection then just breaks.
		if err := want[evLost](t, p.i.events).err; !errors.Is(err, ErrDropped) {
			assert.ErrorIs(t, err, ErrPeerClosed)
		}
		p.to.Close()
	})
	t.Run("of the initiator's node", func(t *testing.T) {
		p := newPair(t)
		p.from.Close()
		assert.ErrorIs(t, want[evGone](t, p.s.events).err, ErrPeerClosed)
		assert.Empty(t, p.i.events, "no Lost for our own end")
		assert.Equal(t, Closed, p.from.Dial(blob(p.to), 0, p.i).State())
		assert.Empty(t, p.i.events)
	})
	t.Run("inside a handler", func(t *testing.T) {
		i, s := newInitiator(), newTarget()
		to, from := listen(t, s), listen(t, newTarget())
		closed := make(chan struct{})
		i.ready = func() { from.Close(); close(closed) }
		from.Dial(blob(to), 0, i)
		<-closed
		want[evHello](t, s.events)
		want[evGone](t, s.events)
	})
	t.Run("while dialing", func(t *testing.T) {
		i := newInitiator()
		from := listen(t, newTarget())
		out := from.Dial(impostor(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }), 0, i)
		eventually(t, func() bool { return out.State() == Hello }, "connected")
		out.Close("changed our mind")
		from.Close()
		assert.Empty(t, i.events)
	})
	t.Run("many at once", func(t *testing.T) {
		p := newPair(t)
		for range 4 {
			go p.out.Close("now")
			go p.in.Close("now")
			go p.to.Close()
		}
		want[evGone](t, p.s.events)
		p.from.Close()
		p.to.Close()
		assert.Empty(t, p.s.events, "Gone comes once")
	})
}

func drain(ev events) string {
	text := ""
	for {
		select {
		case e := <-ev:
			if _, ok := e.(evLost); ok {
				text += "Lost "
			}
		default:
			return text
		}
	}
}

// Close is bounded although a handler is stuck, and although all writes are stuck too: a pipe buffers nothing.
func TestCloseWithStuckHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pipes(t, Config{})
		release := make(chan struct{})
		p.s.onFence(func(wire.Fence) (wire.Fenced, error) { <-release; return wire.Fenced{}, nil })
		for range 10 {
			p.out.Fence(1, 1, 1, nil)
			p.in.Revoke(1, nil)
		}
		synctest.Wait()
		for _, n := range []*Node{p.to, p.from} {
			start := time.Now()
			n.Close()
			assert.LessOrEqual(t, time.Since(start), 100*time.Millisecond)
		}
		assert.Equal(t, uint64(1), p.to.Stats().Stuck)
		assert.Zero(t, p.from.Stats().Stuck)
		assert.Empty(t, p.s.events)
		close(release)
		assert.ErrorIs(t, want[evGone](t, p.s.events).err, ErrClosed)
	})
}

func TestQueueOverflow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pipes(t, Config{QueueLimit: 1 << 20})
		defer p.close()
		release := make(chan struct{})
		p.s.onFence(func(f wire.Fence) (wire.Fenced, error) { <-release; return wire.Fenced{ID: f.ID}, nil })
		p.out.Fence(1, 1, 1, nil)
		p.out.Keys(1, ranges(10_000, 0))
		synctest.Wait()
		assert.Equal(t, Ready, p.out.State())
		p.out.Keys(2, ranges(30_000, 0))
		assert.Equal(t, Lost, p.out.State())
		err := want[evLost](t, p.i.events).err
		assert.ErrorIs(t, err, ErrOverflow)
		assert.ErrorContains(t, err, "1 MiB")
		assert.Equal(t, uint64(1), p.from.Stats().Overflows)
		close(release)
		want[evGone](t, p.s.events)
	})
}

// A target answers no faster than the initiator reads, and does not fill its queue.
func TestAnswersWaitForTheReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pipes(t, Config{QueueLimit: 4 << 20})
		defer p.close()
		rails := make([]wire.RailKey, 8)
		for k := range rails {
			rails[k].Rail = uint8(k)
		}
		p.s.keys = func(r []wire.Claim) []wire.KeyEntry {
			e := make([]wire.KeyEntry, len(r))
			for k := range e {
				e[k] = wire.KeyEntry{Known: true, Rails: rails}
			}
			return e
		}
		p.out.Keys(1, ranges(50_000, 0)) // about 12 MB of answers in memory
		assert.Len(t, want[evKeys](t, p.i.events).k.Entries, 50_000)
	})
}
