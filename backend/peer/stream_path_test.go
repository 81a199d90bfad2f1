package peer

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// discard reads and drops all data of a connection.
func discard(c net.Conn) { go func() { _, _ = io.Copy(io.Discard, c) }() }

// replace gives a target's stream another connection, as a Resume does. It returns the initiator's end.
func replace(t *testing.T, in *side, try uint64) net.Conn {
	here, there := net.Pipe()
	in.Do(func(l lockedStream) {
		r := &wire.Resume{Try: try, Mac: (&trust.Secret{1}).ResumeMac(trust.Binding{}, 0, try, 0)}
		code, text := l.Refuses(r, trust.Binding{})
		require.Zero(t, code, text)
		l.Replace(newStreamConn(there, netip.AddrPort{}, nil), r)
	})
	return here
}

// A Resume that comes while a silent connection is checked saves the stream.
func TestResumedWhileJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newSide(t, true)
		defer ends(in)
		here, there := net.Pipe()
		discard(here)
		resumed := make(chan net.Conn, 1)
		var once sync.Once
		in.env.Acks = func(net.Conn, time.Duration) bool {
			once.Do(func() { resumed <- replace(t, in, 1) })
			return false
		}
		in.run(t, there)
		time.Sleep(timeout + timeout/8)
		next := <-resumed
		discard(next)
		require.Equal(t, Ready, in.State())
		require.NoError(t, wire.WriteFrame(next, &wire.Drain{Next: 7}))
		assert.Equal(t, uint64(7), id(<-in.got))
	})
}

// The same without a connection: the Resume comes just after the deadline.
func TestResumedWhileCondemned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newSide(t, true)
		defer ends(in)
		_, there := net.Pipe()
		require.True(t, in.Attach(there, netip.AddrPort{}))
		require.True(t, in.Start(&trust.Secret{1}, nil))
		in.connLost(in.path.conn, io.EOF)
		time.Sleep(hungUpGrace + time.Second)
		late := time.Now()
		replace(t, in, 1)
		require.ErrorIs(t, in.endLost(nil, late), errReplaced)
		in.connLost(in.path.conn, io.EOF)
		require.NoError(t, in.endLost(nil, late), "the connection broke again, and the peer may resume again")
		require.Equal(t, Ready, in.State())
		time.Sleep(hungUpGrace)
		in.live.Arm(time.Now())
		require.NoError(t, in.endLost(nil, time.Now()), "the last read")
		time.Sleep(time.Until(in.live.Arm(time.Now())))
		require.ErrorIs(t, in.endLost(nil, time.Now()), ErrDropped)
		assert.Equal(t, Lost, in.State())
	})
}

// heardAfterBreak is a connection that delivers a frame just after the writer has found it broken.
type heardAfterBreak struct {
	net.Conn
	in *side
}

func (c heardAfterBreak) Read(p []byte) (int, error) {
	c.in.mu.Lock()
	own := c.in.path.conn
	c.in.mu.Unlock()
	if own == nil {
		return 0, net.ErrClosed
	}
	c.in.connLost(own, io.EOF)
	b, err := wire.AppendFrame(nil, &wire.Pong{})
	return copy(p, b), err
}

// Data that are read from a connection after it broke do not count as a sign of life.
func TestHeardAfterBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newSide(t, true)
		here, there := net.Pipe()
		defer here.Close()
		start := time.Now()
		in.run(t, heardAfterBreak{there, in})
		in.tasks.Wait()
		_, cause := in.Ended()
		assert.ErrorContains(t, cause, "process ended")
		assert.InDelta(t, hungUpGrace, time.Since(start), float64(50*time.Millisecond))
	})
}

// A target whose reader waits for room notices that its peer is gone, and serves a peer that comes back.
func TestGoneWhileAnswersWait(t *testing.T) {
	for name, back := range map[string]bool{"gone": false, "back": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in := newSide(t, true)
				defer ends(in)
				in.handle = func() {
					for in.Held() < in.env.QueueLimit*3/4 {
						in.Send(&wire.Revoke{Regions: make([]uint64, 1<<12)})
					}
					in.WaitRoom()
				}
				here, there := net.Pipe()
				in.run(t, there)
				require.NoError(t, wire.WriteFrame(here, &wire.Drain{Next: 1}))
				<-in.got
				synctest.Wait() // the writer writes, the reader waits
				here.Close()
				time.Sleep(time.Second)
				require.Equal(t, Ready, in.State())
				if back {
					next := replace(t, in, 1)
					discard(next)
					require.NoError(t, wire.WriteFrame(next, &wire.Drain{Next: 2}))
					require.Equal(t, uint64(2), id(<-in.got))
					return
				}
				time.Sleep(timeout)
				assert.Equal(t, Lost, in.State())
			})
		})
	}
}

// A target does not look for another connection.
func TestSuspectAtTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newSide(t, true)
		defer ends(in)
		here, there := net.Pipe()
		discard(here)
		in.run(t, there)
		in.Suspect(netip.Addr{})
		in.Do(func(l lockedStream) { assert.True(t, l.Connected()) })
	})
}
