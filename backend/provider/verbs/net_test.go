package verbs

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	imitation "gorail/test/verbs"
)

// A RoCE device names the interface below it, if that interface is of this network namespace: it has the GID's address. An InfiniBand
// device names none.
func TestDeviceNet(t *testing.T) {
	for _, ethernet := range []bool{true, false} {
		lib := imitation.Build(t)
		lib.Set("ports", 2)
		devs, err := New(options(t, lib, ethernet)).Discover(context.Background(), provider.Filter{})
		require.NoError(t, err)
		require.Len(t, devs, 2)
		require.Equal(t, ethernet, devs[0].Net == "lo", "127.0.0.1: %+v", devs[0])
		require.Empty(t, devs[1].Net, "127.0.0.2, which lo does not have")
	}
}
