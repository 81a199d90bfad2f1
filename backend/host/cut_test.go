package host

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// conn is a connection that counts its end.
type conn struct {
	net.Conn
	closed atomic.Int32
}

func (c *conn) Close() error { c.closed.Add(1); return nil }

func every(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// TestConnect: a network without answers is whole after a second. The next request finds it, two are under way at most, and none on return.
func TestConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, whole := time.Now(), time.Now().Add(time.Second)
		var under, most, tries atomic.Int32
		won := &conn{}
		c, err := Connect(t.Context(), every(40*time.Millisecond), func(ctx context.Context) (net.Conn, error) {
			tries.Add(1)
			most.Store(max(most.Load(), under.Add(1)))
			defer under.Add(-1)
			if !time.Now().Before(whole) {
				return won, nil
			}
			<-ctx.Done() // TCP asks again too late
			return nil, ctx.Err()
		})
		require.NoError(t, err)
		require.Same(t, won, c)
		require.Equal(t, time.Second, time.Since(begun))
		require.EqualValues(t, 26, tries.Load())
		require.LessOrEqual(t, most.Load(), int32(3), "two, and one that ends")
		require.Zero(t, under.Load())
		require.Zero(t, won.closed.Load())
	})
}

// TestConnectSlowly: an answer takes longer than the pauses. The first request has it. Of two connections that come at once one is closed.
func TestConnectSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		var made [2]conn
		c, err := Connect(t.Context(), every(40*time.Millisecond), func(ctx context.Context) (net.Conn, error) {
			switch n.Add(1) {
			case 1:
				time.Sleep(300 * time.Millisecond)
				return &made[0], nil
			case 8: // begun after 280 ms
				time.Sleep(20 * time.Millisecond)
				return &made[1], nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		require.NoError(t, err)
		require.Zero(t, c.(*conn).closed.Load())
		require.EqualValues(t, 1, made[0].closed.Load()+made[1].closed.Load())
	})
}

// TestConnectMany: the networks to a thousand addresses are cut at once. Requests for all of them are no more a second than for eighty.
func TestConnectMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var tries atomic.Int32
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				_, err := Connect(ctx, every(40*time.Millisecond), func(ctx context.Context) (net.Conn, error) {
					tries.Add(1)
					<-ctx.Done()
					return nil, ctx.Err()
				})
				assert.Error(t, err)
			})
		}
		all.Wait()
		require.LessOrEqual(t, tries.Load(), int32(1000+10*2000+1000), "the first pauses are shorter: not all had begun")
		require.Greater(t, tries.Load(), int32(10*1000))
	})
	require.Zero(t, awaited.Load())
}

// TestConnectEnds: the first error that is an answer counts, and the end of the context ends everything, whatever the dials return then.
func TestConnectEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		_, err := Connect(t.Context(), every(40*time.Millisecond), func(ctx context.Context) (net.Conn, error) {
			if n.Add(1) == 3 {
				return nil, unix.ECONNREFUSED
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		require.ErrorIs(t, err, unix.ECONNREFUSED)
		for range 100 { // both a result and the end are there: neither may be lost
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			begun := time.Now()
			_, err = Connect(ctx, every(40*time.Millisecond), func(ctx context.Context) (net.Conn, error) {
				<-ctx.Done()
				return nil, errors.New("given up")
			})
			cancel()
			require.ErrorContains(t, err, "given up")
			require.Equal(t, time.Second, time.Since(begun))
		}
	})
}

// TestRequestPause: a two-hundredth of the time without an answer, within bounds, and never before an answer can be there.
func TestRequestPause(t *testing.T) {
	require.Equal(t, 20*time.Millisecond, RequestPause(0, 0))
	require.Equal(t, 20*time.Millisecond, RequestPause(4*time.Second, time.Millisecond))
	require.Equal(t, 50*time.Millisecond, RequestPause(10*time.Second, 0))
	require.Equal(t, 500*time.Millisecond, RequestPause(time.Hour, 0))
	require.Equal(t, time.Second, RequestPause(0, 250*time.Millisecond))
}

// TestUnanswered: what the kernel sends again is unanswered after two round trips and another look. A peer without room, and one that acknowledges, answer.
func TestUnanswered(t *testing.T) {
	var u Unanswered
	now := time.Now()
	look := func(after time.Duration, i unix.TCPInfo) bool { return u.Look(&i, now.Add(after)) }
	again := unix.TCPInfo{Unacked: 3, Retransmits: 1, Rtt: 50_000, Snd_mss: 1448, Snd_wnd: 1 << 16}
	require.False(t, look(0, again))
	require.False(t, look(90*time.Millisecond, again), "the answer may be on its way")
	require.True(t, look(101*time.Millisecond, again))
	require.False(t, look(110*time.Millisecond, unix.TCPInfo{Unacked: 3, Rtt: 50_000}), "acknowledged meanwhile")
	require.False(t, look(300*time.Millisecond, again), "from the beginning")
	later := again
	later.Bytes_acked = 1448
	require.False(t, look(10*time.Second, later), "nobody looked, and another packet is lost now")
	require.True(t, look(10101*time.Millisecond, later))
	require.False(t, Repeats(&unix.TCPInfo{Notsent_bytes: 1 << 20, Snd_mss: 1448, Probes: 5, Backoff: 5}), "a stopped process: its buffer is full")
	require.True(t, Repeats(&unix.TCPInfo{Notsent_bytes: 1 << 20, Snd_mss: 1448, Snd_wnd: 1 << 16}), "no packet leaves this host")
}
