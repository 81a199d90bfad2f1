package verbs

import (
	"context"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/fake/drive"
)

// TestMemoryHere: what the machine's first device says of on-demand paging and dmabufs is heard and told, yes or no.
func TestMemoryHere(t *testing.T) {
	if os.Getenv("GORAIL_TEST_VERBS") == "" {
		t.Skip("set GORAIL_TEST_VERBS=1 to use this machine's devices")
	}
	opts, _, err := option.Parse(map[string]string{"ib_odp": "on"}, nil)
	require.NoError(t, err)
	on := New(Options{IB: opts.IB})
	devs, err := on.Discover(context.Background(), provider.Filter{})
	require.NoError(t, err)
	mem := drive.Alloc(1 << 16)
	if rail, err := on.Open(devs[0]); err != nil {
		require.ErrorIs(t, err, syscall.EOPNOTSUPP)
		require.ErrorContains(t, err, devs[0].Name+": on-demand paging")
		t.Log(err)
	} else {
		mr, err := rail.Register(drive.Addr(mem), 1<<16, 0)
		require.NoError(t, err)
		require.NoError(t, mr.Close())
		require.False(t, rail.Caps().Pins)
		require.NoError(t, rail.Close())
	}
	opts.IB.ODP = false
	rail, err := New(Options{IB: opts.IB}).Open(devs[0])
	require.NoError(t, err)
	_, err = rail.(provider.DMABufRegisterer).RegisterDMABuf(-1, 0, 4096, 0)
	want := syscall.EOPNOTSUPP
	if rail.Caps().DMABuf {
		want = syscall.EBADF
	}
	require.ErrorIs(t, err, want)
	t.Log("dmabuf:", rail.Caps().DMABuf, err)
	require.NoError(t, rail.Close())
}
