package verbs

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
	"gorail/test/drive"
	imitation "gorail/test/verbs"
)

// held waits until so many calls are held by a switch.
func held(t testing.TB, lib *imitation.Lib, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return lib.Count("held") == n }, time.Minute, time.Millisecond)
}

// ibv_destroy_qp of soft RoCE waits for packets that wait for a neighbour. A queue pair that has reported all its requests uses no memory:
// its endpoint is closed before the call returns, other endpoints of the rail go on, and the rail closes after the call.
func TestDestroyTakesLong(t *testing.T) {
	lib := imitation.Build(t)
	a, b := pair(t, lib)
	x, _ := link(a, b)
	x2, _ := link(a, b)
	require.NoError(t, a.d.Recv(x.Core(), 0, a.mem[:64], a.mr.Desc()))
	lib.Set("hold_destroy", 1)
	t.Cleanup(func() { lib.Set("hold_destroy", 0) }) // the rail closes after that
	require.NoError(t, x.Close())
	held(t, lib, 1)
	a.until(1)
	require.NotZero(t, a.done[0].Err)
	require.NoError(t, a.d.RMA(x2.Core(), drive.Write, 1, a.segs(b, 1, 64)...))
	a.until(2)
	require.Zero(t, a.done[1].Err)
	require.NoError(t, x.Close(), "again")
}

// A queue pair that has not reported its requests may still use memory. Only ibv_destroy_qp ends that, so the endpoint is not closed
// before the call returns.
func TestDestroyEndsAccess(t *testing.T) {
	lib := imitation.Build(t)
	a, b := pair(t, lib)
	x, _ := link(a, b)
	lib.Set("delay", 1<<30)
	require.NoError(t, a.d.Recv(x.Core(), 0, a.mem[:64], a.mr.Desc()))
	require.NoError(t, a.d.RMA(x.Core(), drive.Read, 1, a.segs(b, 1, 64)...))
	lib.Set("hold_destroy", 1)
	release := func() { lib.Set("hold_destroy", 0) }
	t.Cleanup(release)
	closed := make(chan error, 1)
	go func() { closed <- x.Close() }()
	held(t, lib, 1)
	polled := make(chan int, 1) // completions
	go func() {
		defer close(polled)
		list, _ := a.d.Poll(8)
		polled <- len(list)
	}()
	select {
	case err := <-closed:
		t.Fatal("closed while the device may use memory: ", err)
	case n := <-polled:
		require.Zero(t, n, "reported while the device may use memory")
	case <-time.After(20 * destroyWait):
	}
	release()
	require.NoError(t, <-closed)
	a.until(2 - <-polled)
}

// A queue pair that is being destroyed holds no room in the completion queue.
func TestDestroyFreesRoom(t *testing.T) {
	lib := imitation.Build(t)
	lib.Set("max_cqe", 10_000) // nine queue pairs fit
	lib.Set("max_cq", 2)       // one for each rail
	a, b := pair(t, lib)
	var all []provider.Endpoint
	for range 9 {
		x, _ := link(a, b)
		all = append(all, x)
	}
	require.NoError(t, a.d.Recv(all[0].Core(), 0, a.mem[:64], a.mr.Desc()))
	_, err := a.rail.OpenEndpoint()
	require.ErrorIs(t, err, syscall.ENOMEM)
	lib.Set("hold_destroy", 1)
	t.Cleanup(func() { lib.Set("hold_destroy", 0) })
	require.NoError(t, all[0].Close())
	held(t, lib, 1)
	ep, err := a.rail.OpenEndpoint()
	require.NoError(t, err)
	lib.Set("hold_destroy", 0)
	require.NoError(t, ep.Close())
}
