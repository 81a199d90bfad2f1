package tcp

import (
	"context"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestGivenUpSpendsNoTicket: an initiator that gave its connection up before the target looked at it tries again, with the same ticket. If that were spent, the link
// would need a fence.
func TestGivenUpSpendsNoTicket(t *testing.T) {
	t.Parallel()
	l, w := newListener(t), newLoneWaiter(1)
	l.Expect(&w.waiter)
	other, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer other.Close()
	dial := func() (c, in *net.TCPConn) {
		c, err := net.DialTCP("tcp", nil, other.Addr().(*net.TCPAddr))
		require.NoError(t, err)
		_, err = c.Write(w.opening())
		require.NoError(t, err)
		in, err = other.AcceptTCP()
		require.NoError(t, err)
		return c, in
	}
	c, in := dial()
	resetConn(c)
	raw, err := in.SyscallConn()
	require.NoError(t, err)
	const closed = 7
	for state := uint8(0); state != closed; {
		require.NoError(t, raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			require.NoError(t, err)
			state = info.State
		}))
	}
	l.take(in)
	c, in = dial()
	defer c.Close()
	l.take(in)
	select {
	case err := <-w.ended:
		require.NoError(t, err)
	case got := <-w.got:
		require.NoError(t, got.Close())
	}
}

// TestLateAnswer: a target that starves has its kernel acknowledge the opening. The connection stays until it answers, or the time of the dial is over.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer l.Close()
	c, err := net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	require.NoError(t, err)
	defer c.Close()
	target, err := l.AcceptTCP()
	require.NoError(t, err)
	defer target.Close()
	_, err = c.Write([]byte("opening"))
	require.NoError(t, err)
	const more = 20 * time.Millisecond
	text := make([]byte, 4)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(more)))
	late := time.AfterFunc(5*more, func() { _, _ = target.Write([]byte("an")) })
	defer late.Stop()
	later := time.AfterFunc(10*more, func() { _, _ = target.Write([]byte("sw")) })
	defer later.Stop()
	require.NoError(t, readAnswer(t.Context(), c, text, more))
	require.Equal(t, "answ", string(text))
	ctx, cancel := context.WithTimeout(t.Context(), 3*more)
	defer cancel()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(more)))
	require.ErrorIs(t, readAnswer(ctx, c, text, more), os.ErrDeadlineExceeded)
}
