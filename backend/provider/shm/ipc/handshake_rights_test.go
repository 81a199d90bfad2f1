package ipc

import (
	"fmt"
	"testing"
	"time"

	"gorail/test/nofile"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestUnsealedSegment: a segment that could shrink is not mapped, and the endpoint fails.
func TestUnsealedSegment(t *testing.T) {
	for i := range 3 {
		a, b := newEnd(t, nil), newEnd(t, nil)
		before := descriptors(t)
		loose, err := unix.MemfdCreate("loose", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		require.NoError(t, err)
		require.NoError(t, unix.Ftruncate(loose, int64(small.Segment)))
		good := b.e.rights[i]
		b.e.rights[i] = loose
		require.NoError(t, b.connect(a))
		eventually(t, func() bool { return a.failed() != 0 })
		require.Equal(t, unix.EPROTO, a.failed())
		require.ErrorContains(t, a.connect(b), "map the peer's segments")
		b.e.Close()
		b.e.rights[i] = -1
		_ = unix.Close(good)
		_ = unix.Close(loose)
		eventually(t, func() bool { return descriptors(t) <= before+1 }) // +1: the pidfd
	}
}

// send sends descriptors with a message, or the message alone where the other end refuses descriptors.
func send(t *testing.T, c *Conn, what []byte, fds []int) {
	err := c.Send(what, fds...)
	if Errno(err) == unix.EPERM {
		err = c.Send(what)
	}
	require.NoError(t, err)
}

// TestManyDescriptors: descriptors with junk or with the hello are refused or dropped. A wrong number in place of the
// three fails. All of them are closed.
func TestManyDescriptors(t *testing.T) {
	for _, many := range []int{1, 2, 4, 5, 100} {
		a := newEnd(t, nil)
		fds := make([]int, many)
		before := descriptors(t)
		c := dial(t, a)
		send(t, c, []byte("x"), fds)
		hungUp(t, c)
		c.Close()
		require.Equal(t, before, descriptors(t))
		c = dial(t, a)
		send(t, c, helloFor(a), fds)
		n, err := c.Recv(make([]byte, 8))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, before+3, descriptors(t)) // c, its other end, the pidfd
		h := hello{Magic: helloMagic}
		require.NoError(t, c.Send(h.encode()[:4], fds...))
		eventually(t, func() bool { return a.failed() != 0 })
		require.Equal(t, unix.EPROTO, a.failed())
		hungUp(t, c)
		require.Equal(t, before+2, descriptors(t))
		c.Close()
		a.close()
	}
}

// TestHandshakeWithoutDescriptors: a lasting shortage of descriptors fails the endpoint with EMFILE. After a short one the peer is
// accepted.
func TestHandshakeWithoutDescriptors(t *testing.T) {
	for _, moment := range []bool{false, true} {
		t.Run(fmt.Sprintf("moment=%v", moment), func(t *testing.T) {
			a := newEnd(t, nil)
			c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			defer unix.Close(c)
			restore := nofile.None(t)
			from := time.Now()
			err = unix.Connect(c, &unix.SockaddrUnix{Name: "@" + string(a.l.Place().Abstract[1:])})
			if err == nil {
				err = unix.Send(c, helloFor(a), unix.MSG_NOSIGNAL)
			}
			if moment {
				time.Sleep(100 * time.Millisecond)
			}
			for !moment && a.failed() == 0 && time.Since(from) < limit {
				time.Sleep(time.Millisecond)
			}
			restore()
			require.NoError(t, err)
			if moment {
				n, err := unix.Read(c, make([]byte, 8))
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.Zero(t, a.failed())
				return
			}
			require.Equal(t, unix.EMFILE, a.failed())
			require.Greater(t, time.Since(from), shortageLimit)
		})
	}
}
