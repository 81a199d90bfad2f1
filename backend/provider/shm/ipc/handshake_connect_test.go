package ipc

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/internal/procstat"
)

// TestConnect: each endpoint has the peer's memory, doorbell and process number. No descriptor and no goroutine is
// left after the close.
func TestConnect(t *testing.T) {
	newEnd(t, nil) // opens what the runtime keeps open
	fds, routines := descriptors(t), procstat.Goroutines()
	l := newHandshakeListener(t)
	a, b := newEnd(t, l), newEnd(t, l)
	require.Nil(t, a.e.Err())
	join(t, a, b)
	*(*byte)(a.mem) = 42
	require.Equal(t, byte(42), *(*byte)(b.peer.Segment))
	require.True(t, a.peer.Self)
	require.NotEqual(t, a.moves, b.moves, "one of them moves to the other's connection")
	require.False(t, a.peer.Assist)
	require.Equal(t, os.Getpid(), a.pid)
	if refused := unix.Sendmsg(a.doorbell, []byte{0}, unix.UnixRights(0), nil, 0); refused == nil { // before Linux 6.16
		n, err := unix.Read(b.peer.Sock, make([]byte, 8))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Error(t, unix.SetsockoptInt(a.doorbell, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0))
	}
	require.NoError(t, unix.Send(a.doorbell, []byte{0}, 0))
	n, err := unix.Read(b.peer.Sock, make([]byte, 8))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, unix.EISCONN, Errno(a.connect(b)))
	a.close()
	b.close()
	l.Close()
	eventually(t, func() bool { return descriptors(t) == fds && procstat.Goroutines() <= routines })
}

// TestConnectsAgain: a peer whose connection was closed before it showed a token, or found the backlog full, connects
// again.
func TestConnectsAgain(t *testing.T) {
	t.Run("let go", func(t *testing.T) {
		a, b := newEnd(t, nil), newEnd(t, nil)
		a.l.mu.Lock() // no endpoint waits: connections are closed
		a.l.waiting = map[Token]*Handshake{}
		a.l.mu.Unlock()
		require.NoError(t, b.connect(a))
		time.Sleep(20 * time.Millisecond)
		require.False(t, a.hasPeer())
		a.l.mu.Lock()
		a.l.waiting[a.e.token] = a.e
		a.l.mu.Unlock()
		require.NoError(t, a.connect(b))
		eventually(t, func() bool { return a.complete() && b.complete() })
		b.e.mu.Lock()
		defer b.e.mu.Unlock()
		require.Equal(t, -1, b.e.rights[0]) // closed: the peer has the segment
	})
	t.Run("no room", func(t *testing.T) {
		sock, err := Listen(0, SameUser)
		require.NoError(t, err)
		var fill []*Conn
		for {
			c, err := Dial(sock.Place(), nil)
			if err != nil {
				require.ErrorIs(t, err, unix.EAGAIN)
				break
			}
			fill = append(fill, c)
		}
		b := newEnd(t, nil)
		require.NoError(t, b.e.Connect(sock.Place(), Token{}))
		for range fill {
			c, err := sock.Accept()
			require.NoError(t, err)
			c.Close()
		}
		c, err := sock.Accept()
		require.NoError(t, err)
		buf := make([]byte, 64)
		n, err := c.Recv(buf)
		require.NoError(t, err)
		require.Equal(t, helloSize, n)
		for _, c := range append(fill, c) {
			c.Close()
		}
		sock.Close()
	})
}

// TestNeverAccepted: the endpoint fails if the peer keeps closing its connections.
func TestNeverAccepted(t *testing.T) {
	a, b := newEnd(t, nil), newEnd(t, nil)
	wrong := a.e.Token()
	wrong[0] ^= 1
	require.NoError(t, b.e.Connect(a.l.Place(), wrong))
	eventually(t, func() bool { return b.failed() != 0 })
	require.Equal(t, unix.ECONNREFUSED, b.failed())
	require.ErrorContains(t, b.e.Err(), "keeps closing our connections")
	require.False(t, a.hasPeer())
}

// TestCloseEndsAll: Close ends all waits for a peer. No goroutine is left.
func TestCloseEndsAll(t *testing.T) {
	newEnd(t, nil)
	routines := procstat.Goroutines()
	for range 20 {
		l := newHandshakeListener(t)
		a, b := newEnd(t, l), newEnd(t, l)
		silent, half := dial(t, a), dial(t, a)
		require.NoError(t, half.Send(helloFor(a)))
		sock, err := Listen(16, SameUser)
		require.NoError(t, err)
		require.NoError(t, b.e.Connect(sock.Place(), Token{})) // the listener never answers
		from := time.Now()
		a.close()
		b.close()
		l.Close()
		require.Less(t, time.Since(from), limit/2)
		hungUp(t, silent)
		silent.Close()
		half.Close()
		sock.Close()
	}
	eventually(t, func() bool { return procstat.Goroutines() <= routines })
}
