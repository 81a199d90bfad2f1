package handshake

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestBusyPollError: the message says what is needed where the kernel refuses busy polling.
func TestBusyPollError(t *testing.T) {
	t.Parallel()
	o := Sockets{BusyPoll: 50}
	require.NoError(t, o.busyPollError(nil))
	err := o.busyPollError(unix.EPERM)
	require.ErrorIs(t, err, unix.EPERM)
	for _, text := range []string{"tcp_busy_poll=50", "CAP_NET_ADMIN", "net.core.busy_read=50"} {
		require.ErrorContains(t, err, text)
	}
	require.ErrorContains(t, o.busyPollError(unix.ENOPROTOOPT), "CONFIG_NET_RX_BUSY_POLL")
}
