package tcp

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestAnswerIsLost: an initiator that is gone before it gets the answer has spent the ticket. The target's endpoint hears of it at
// once: else both ends would wait for connect_timeout.
func TestAnswerIsLost(t *testing.T) {
	t.Parallel()
	l, w := newListener(t), newLoneWaiter(1)
	l.Expect(&w.waiter)
	other, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer other.Close()
	c, err := net.DialTCP("tcp", nil, other.Addr().(*net.TCPAddr))
	require.NoError(t, err)
	_, err = c.Write(w.opening())
	require.NoError(t, err)
	in, err := other.AcceptTCP()
	require.NoError(t, err)
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
	require.Error(t, <-w.ended)
	require.Empty(t, w.got)
}
