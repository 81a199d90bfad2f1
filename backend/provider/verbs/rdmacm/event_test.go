package rdmacm

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhyAConnectionFailed(t *testing.T) {
	for _, c := range []struct {
		kind, status int
		want         syscall.Errno
	}{
		{eventRejected, 28, syscall.ECONNREFUSED}, // InfiniBand's code for a rejection
		{eventConnectError, -int(syscall.ECONNRESET), syscall.ECONNREFUSED},
		{eventConnectError, -int(syscall.ETIMEDOUT), syscall.ETIMEDOUT},
		{eventAddrError, -int(syscall.ENODEV), syscall.ENODEV},
		{eventAddrError, 0, syscall.EHOSTUNREACH},
		{eventRouteError, -5000, syscall.EHOSTUNREACH},
		{eventUnreachable, 0, syscall.ETIMEDOUT},
	} {
		e := rawEvent{kind: c.kind, status: c.status}
		require.Equal(t, Failed, e.classify())
		require.Equal(t, c.want, e.reason(), "%+v", c)
	}
}
