package verbs

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/test/drive"
	imitation "gorail/test/verbs"
)

// Only events of the port and the device are reported. Watch ends with its context and leaves the rail unchanged.
func TestWatch(t *testing.T) {
	lib := imitation.Build(t)
	lib.Set("ports", 2)
	a, b := pair(t, lib)
	type event struct {
		up  bool
		why string
	}
	for range 2 {
		ctx, cancel := context.WithCancel(context.Background())
		told, ended := make(chan event, 16), make(chan error, 1)
		go func() {
			ended <- a.rail.(provider.Watcher).Watch(ctx, func(up bool, why string) { told <- event{up, why} })
		}()
		lib.Event(0, imitation.PortErr, 1)
		lib.Event(0, imitation.PortErr, 2)
		lib.Event(0, imitation.LIDChange, 1)
		lib.Event(0, imitation.PortActive, 2)
		lib.Event(0, imitation.PortActive, 1)
		lib.Event(0, imitation.DeviceFatal, 0)
		for _, want := range []event{{false, "port error"}, {true, "port active"}, {false, "local catastrophic error"}} {
			select {
			case got := <-told:
				require.Equal(t, want, got)
			case <-time.After(10 * time.Second):
				t.Fatal("no event was reported")
			}
		}
		x, y := link(a, b) // the event of a bad key belongs to the queue pair: without its acknowledgement Close would hang
		bad := b.segs(a, 1, 64)
		bad[0].Key ^= 1
		b.done = map[uint64]drive.Comp{}
		require.NoError(t, b.d.RMA(y.Core(), drive.Write, 1, bad...))
		b.until(1)
		require.Equal(t, syscall.EACCES, b.done[1].Err)
		require.NoError(t, x.Close())
		cancel()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(10 * time.Second):
			t.Fatal("Watch did not return")
		}
		require.Empty(t, told)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, a.rail.(provider.Watcher).Watch(ctx, func(bool, string) { t.Error("told") }))
}
