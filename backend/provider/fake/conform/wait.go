package conform

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider/fake/drive"
)

// testWaitFD: the target blocks as the core's thread does (poll until empty, arm, edge-triggered epoll) and is woken for
// every operation, yet hardly ever when there is none.
func testWaitFD(t *testing.T, a, b *side) {
	fd := b.d.WaitFD()
	if fd < 0 {
		t.Skip("no descriptor to wait on")
	}
	const et = 1 << 31 // EPOLLET
	ep, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	require.NoError(t, err)
	defer syscall.Close(ep)
	require.NoError(t, syscall.EpollCtl(ep, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: syscall.EPOLLIN | et}))

	var stop atomic.Bool
	var loops, timeouts atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			loops.Add(1)
			if comps, err := b.d.Poll(16); err != nil || len(comps) > 0 || !b.d.Arm() {
				continue
			}
			var ev [1]syscall.EpollEvent
			if n, err := syscall.EpollWait(ep, ev[:], 500); n == 0 && err == nil {
				timeouts.Add(1)
			}
		}
	}()
	defer func() {
		stop.Store(true)
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Error("the waiter hangs")
		}
	}()
	id := uint64(0)
	burst := func(n, size int) { // n writes at once: one poll of the target may leave some of them in a socket
		end := time.Now().Add(5 * time.Second)
		first := id + 1
		for ; id < first+uint64(n)-1; id++ {
			for err := error(syscall.EAGAIN); err != nil && time.Now().Before(end); {
				if err = a.d.RMA(a.ep.Core(), drive.Write, id+1, a.seg(b, 0, 0, size)); err != nil {
					a.poll()
				}
			}
		}
		for i := first; i <= id; i++ {
			for !a.has(i)() && time.Now().Before(end) {
				a.poll()
			}
			require.True(t, a.has(i)(), "write %d", i)
			require.Zero(t, a.done[i].Err)
		}
	}
	for range 30 {
		burst(1, 4096)
		time.Sleep(2 * time.Millisecond)
	}
	for range 30 {
		burst(8, 64<<10)
	}
	require.Zero(t, timeouts.Load(), "a wake-up was missed")
	time.Sleep(50 * time.Millisecond)
	before := loops.Load()
	time.Sleep(300 * time.Millisecond)
	require.Less(t, loops.Load()-before, int64(20), "woken with nothing to do")
}
