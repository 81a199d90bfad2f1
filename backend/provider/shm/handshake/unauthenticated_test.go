package handshake

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/provider/shm/ipc"
)

// TestStrayDatagrams: eleven fill the queue of a socket that takes datagrams; hundreds are more than any. The two connect all the same, while
// as many connections say nothing, or junk.
func TestStrayDatagrams(t *testing.T) {
	for _, many := range []int{11, 400} {
		a, b := newEnd(t, nil), newEnd(t, nil)
		d, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		var pests []*ipc.Conn
		for _, at := range []*end{a, b} {
			for i := range many {
				_ = unix.Sendto(d, make([]byte, i%64), unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: "@" + string(at.l.Name()[1:])})
				if c, err := ipc.Dial(at.l.Name()); err == nil {
					pests = append(pests, c)
					if i%2 == 1 {
						_ = c.Send(make([]byte, i%64))
					}
				}
			}
		}
		join(t, a, b)
		for _, c := range pests {
			c.Close()
		}
		_ = unix.Close(d)
	}
}

// TestSilentCallers: connections that say nothing wait, a moment, and a peer that comes behind them is taken in at once.
func TestSilentCallers(t *testing.T) {
	const calls = 64
	for first := 0; first <= calls; first += calls / 2 {
		l := newListener(t)
		a, b := newEnd(t, l), newEnd(t, nil)
		var silent []*ipc.Conn
		for i := range calls + 1 {
			if i == first {
				require.NoError(t, b.connect(a))
			}
			silent = append(silent, dial(t, a))
		}
		eventually(t, a.met)
		require.Zero(t, a.failed())
		eventually(t, func() bool { return a.callers() == 0 }) // nobody else is waited for
		for _, c := range silent {
			hungUp(t, c)
			c.Close()
		}
		newEnd(t, l) // the listener takes connections in
		from := time.Now()
		for i := range calls {
			silent[i] = dial(t, a)
		}
		eventually(t, func() bool { n := a.callers(); return n > 0 && n <= unproved })
		last := silent[calls-1]
		hungUp(t, last)
		require.Greater(t, time.Since(from), proveIn/2)
		eventually(t, func() bool { return a.callers() == 0 })
		for _, c := range silent {
			c.Close()
		}
	}
}

// TestUnauthenticated: what is said wrongly is nobody's.
func TestUnauthenticated(t *testing.T) {
	a := newEnd(t, nil)
	for i := range 40 {
		c := dial(t, a)
		_ = c.Send(make([]byte, i*7))
		hungUp(t, c)
		c.Close()
	}
	good := greeting(a)
	for i := range good {
		bad := append([]byte{}, good...)
		bad[i] ^= 1
		c := dial(t, a)
		_ = c.Send(bad)
		hungUp(t, c)
		c.Close()
	}
	c := dial(t, a)
	defer c.Close()
	_ = c.Send(append(good, 0))
	hungUp(t, c)
	require.False(t, a.met())
	require.Equal(t, -1, a.pidfd)
	join(t, a, newEnd(t, nil))
}

// TestOldestGoes: one that comes when all places are taken, and shows its token later, has the place of the oldest.
func TestOldestGoes(t *testing.T) {
	a := newEnd(t, nil)
	var silent []*ipc.Conn
	for range unproved {
		silent = append(silent, dial(t, a))
	}
	eventually(t, func() bool { return a.callers() == unproved })
	mine := dial(t, a)
	defer mine.Close()
	hungUp(t, silent[0])
	require.NoError(t, mine.Send(greeting(a)))
	n, err := mine.Recv(make([]byte, 8))
	require.NoError(t, err)
	require.Equal(t, 1, n) // the token was right
	for _, c := range silent {
		hungUp(t, c)
		c.Close()
	}
}

// TestSecondCaller: the token works once.
func TestSecondCaller(t *testing.T) {
	l := newListener(t)
	a, b, c := newEnd(t, l), newEnd(t, nil), newEnd(t, nil)
	newEnd(t, l) // the listener takes connections in
	require.NoError(t, b.connect(a))
	eventually(t, a.met)
	peer := a.peer
	require.NoError(t, c.connect(a))
	other := dial(t, a)
	defer other.Close()
	require.NoError(t, other.Send(greeting(a)))
	hungUp(t, other)
	require.NoError(t, a.connect(b))
	eventually(t, func() bool { return a.both() && b.both() })
	require.Same(t, peer, a.peer)
	require.False(t, c.both())
}
