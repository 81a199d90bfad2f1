package core_test

import (
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/core"
	"gorail/backend/provider/fake"
)

func TestTrace(t *testing.T) {
	a, b := ends(t, fake.TCPCaps(), nil)
	run := func(op, bytes int) core.Xfer {
		x := a.xfer(b, op, 1, bytes)
		a.post(x)
		require.True(t, a.core.Wait(x, 10*time.Second))
		return x
	}
	run(core.Write, 64)
	list, lost := a.core.StopTrace()
	require.Empty(t, list, "no trace was started")
	require.Zero(t, lost)

	require.NoError(t, a.core.StartTrace())
	require.ErrorIs(t, a.core.StartTrace(), syscall.EBUSY)
	begin := core.Now()
	w := run(core.Write, 100)
	run(core.Read, 200)
	region, err := a.core.Region(farRegion)
	require.NoError(t, err)
	region.SetLive(false)
	bad := a.xfer(b, core.Write, 1, 300)
	a.post(bad)
	a.event()
	bad.Finalize(-3)
	region.SetLive(true)
	list, lost = a.core.StopTrace()
	require.Zero(t, lost)
	require.Len(t, list, 3)
	for _, x := range list {
		require.LessOrEqual(t, x.Posted, x.Ended)
		require.GreaterOrEqual(t, x.Posted, begin)
		require.EqualValues(t, 70, x.Session)
	}
	require.Equal(t, []int{0}, list[0].Rails)
	require.Equal(t, []uint64{100, 200, 300}, []uint64{list[0].Bytes, list[1].Bytes, list[2].Bytes})
	require.Equal(t, []int{core.Write, core.Read, core.Write}, []int{list[0].Op, list[1].Op, list[2].Op})
	require.Equal(t, []int{0, 0, -3}, []int{list[0].Err, list[1].Err, list[2].Err})
	require.Empty(t, list[2].Rails)

	// Traces start and stop beside a thread that posts. What found no room is counted.
	var wg sync.WaitGroup
	quit := make(chan struct{})
	wg.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
			}
			a.post(w)
			a.core.Wait(w, 10*time.Second)
		}
	})
	for range 20 {
		require.NoError(t, a.core.StartTrace())
		time.Sleep(time.Millisecond) // how much is posted meanwhile does not matter
		list, lost = a.core.StopTrace()
		require.Zero(t, lost)
		for _, x := range list {
			require.EqualValues(t, 100, x.Bytes)
		}
	}
	close(quit)
	wg.Wait()
	require.NoError(t, a.core.StartTrace())
	for range core.TraceMax + 10 {
		a.post(w)
		if !a.core.Wait(w, 10*time.Second) {
			t.Fatal("no end")
		}
	}
	list, lost = a.core.StopTrace()
	require.Len(t, list, core.TraceMax)
	require.EqualValues(t, 10, lost)
}
