package ipc

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestStrayDatagrams: two endpoints connect in spite of datagrams and junk connections. 11 datagrams fill the queue
// of a datagram socket; 400 are more than any queue holds.
func TestStrayDatagrams(t *testing.T) {
	for _, many := range []int{11, 400} {
		a, b := newEnd(t, nil), newEnd(t, nil)
		d, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		var strays []*Conn
		for _, at := range []*end{a, b} {
			for i := range many {
				_ = unix.Sendto(d, make([]byte, i%64), unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: "@" + string(at.l.Place().Abstract[1:])})
				if c, err := Dial(at.l.Place(), nil); err == nil {
					strays = append(strays, c)
					if i%2 == 1 {
						_ = c.Send(make([]byte, i%64))
					}
				}
			}
		}
		join(t, a, b)
		for _, c := range strays {
			c.Close()
		}
		_ = unix.Close(d)
	}
}

// TestSilentCallers: silent connections stay pending for a moment only. A peer that connects behind them is accepted
// at once.
func TestSilentCallers(t *testing.T) {
	const calls = 64
	for first := 0; first <= calls; first += calls / 2 {
		l := newHandshakeListener(t)
		a, b := newEnd(t, l), newEnd(t, nil)
		var silent []*Conn
		for i := range calls + 1 {
			if i == first {
				require.NoError(t, b.connect(a))
			}
			silent = append(silent, dial(t, a))
		}
		eventually(t, a.hasPeer)
		require.Zero(t, a.failed())
		eventually(t, func() bool { return a.pending() == 0 }) // closed, since no endpoint waits any more
		for _, c := range silent {
			hungUp(t, c)
			c.Close()
		}
		newEnd(t, l) // so that the listener keeps connections pending
		from := time.Now()
		for i := range calls {
			silent[i] = dial(t, a)
		}
		eventually(t, func() bool { n := a.pending(); return n > 0 && n <= maxPending })
		last := silent[calls-1]
		hungUp(t, last)
		require.Greater(t, time.Since(from), tokenTimeout/2)
		eventually(t, func() bool { return a.pending() == 0 })
		for _, c := range silent {
			c.Close()
		}
	}
}

// TestUnauthenticated: connections with a wrong hello are closed and reach no endpoint.
func TestUnauthenticated(t *testing.T) {
	a := newEnd(t, nil)
	for i := range 40 {
		c := dial(t, a)
		_ = c.Send(make([]byte, i*7))
		hungUp(t, c)
		c.Close()
	}
	good := helloFor(a)
	for i := range good[:8+TokenSize] { // what follows is a claim
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
	require.False(t, a.hasPeer())
	require.Equal(t, -1, a.pidfd)
	join(t, a, newEnd(t, nil))
}

// TestOldestEvicted: a connection evicts the oldest pending one if there are maxPending, and may show its token later.
func TestOldestEvicted(t *testing.T) {
	a := newEnd(t, nil)
	var silent []*Conn
	for range maxPending {
		silent = append(silent, dial(t, a))
	}
	eventually(t, func() bool { return a.pending() == maxPending })
	mine := dial(t, a)
	defer mine.Close()
	hungUp(t, silent[0])
	require.EqualValues(t, 1, a.l.Evicted())
	require.NoError(t, mine.Send(helloFor(a)))
	n, err := mine.Recv(make([]byte, 8))
	require.NoError(t, err)
	require.Equal(t, 1, n) // the token was right
	for _, c := range silent {
		hungUp(t, c)
		c.Close()
	}
}

// TestSecondCaller: a token works once.
func TestSecondCaller(t *testing.T) {
	l := newHandshakeListener(t)
	a, b, c := newEnd(t, l), newEnd(t, nil), newEnd(t, nil)
	newEnd(t, l) // so that the listener keeps connections pending
	require.NoError(t, b.connect(a))
	eventually(t, a.hasPeer)
	peer := a.peer
	require.NoError(t, c.connect(a))
	other := dial(t, a)
	defer other.Close()
	require.NoError(t, other.Send(helloFor(a)))
	hungUp(t, other)
	require.NoError(t, a.connect(b))
	eventually(t, func() bool { return a.complete() && b.complete() })
	require.Same(t, peer, a.peer)
	require.False(t, c.complete())
}
