package conform

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/test/drive"
)

// testWaitFD: the target blocks as the core's thread does: poll until empty, arm, edge-triggered epoll. Every message
// must wake it, and so must WRITEs that need its polls. It sleeps without a time limit, so after a lost wake-up nothing
// completes.
func testWaitFD(t *testing.T, a, b *side) { wakeUps(t, a, b, 30) }

// testSleeps: an idle target is hardly ever woken.
func testSleeps(t *testing.T, a, b *side) {
	w := wakeUps(t, a, b, 3)
	time.Sleep(50 * time.Millisecond)
	before := w.loops.Load()
	time.Sleep(300 * time.Millisecond)
	require.Less(t, w.loops.Load()-before, int64(20), "woken with nothing to do")
}

// wakeUps wakes a sleeping target with a number of small and of large bursts.
func wakeUps(t *testing.T, a, b *side, bursts int) *waiter {
	if b.d.WaitFD() < 0 {
		t.Skip("no descriptor to wait on")
	}
	mr, desc, err := a.d.Reg(a.mem)
	require.NoError(t, err)
	defer a.d.Unreg(mr)
	w := newWaiter(t, a, b)
	id := uint64(0)
	burst := func(n, size int) { // n writes at once: one poll of the target may leave some of them in a socket
		end := time.Now().Add(10 * time.Second)
		post := func(f func() error) {
			id++
			err := error(syscall.EAGAIN)
			for err != nil && time.Now().Before(end) {
				if err = f(); err != nil {
					require.ErrorIs(t, err, syscall.EAGAIN)
					a.poll()
				}
			}
			require.NoError(t, err)
		}
		first := id + 1
		for range n {
			post(func() error { return a.d.RMA(a.ep.Core(), drive.Write, id, a.seg(b, 0, 0, size)) })
		}
		post(func() error { return a.d.Send(a.ep.Core(), id, a.mem[:messageLen], desc) })
		w.sent++
		for i := first; i <= id; i++ {
			for !a.has(i)() && time.Now().Before(end) {
				a.poll()
			}
			require.True(t, a.has(i)(), "operation %d: a wake-up was missed", i)
			require.Zero(t, a.done[i].Err)
		}
		for w.got.Load() < w.sent && time.Now().Before(end) {
			a.poll()
		}
		require.Equal(t, w.sent, w.got.Load(), "messages: a wake-up was missed")
	}
	for range bursts {
		burst(1, 4096)
		time.Sleep(2 * time.Millisecond)
	}
	for range bursts {
		burst(8, 64<<10)
	}
	return w
}

const messageLen = 100

// waiter is a side that polls when it is woken.
type waiter struct {
	b             *side
	epoll, wakeFD int // wakeFD is an eventfd that ends the waiter
	stop          atomic.Bool
	loops, got    atomic.Int64 // got: number of messages
	sent          int64
	done          chan error
}

func newWaiter(t *testing.T, a, b *side) *waiter {
	w := &waiter{b: b, done: make(chan error, 1)}
	var err error
	w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	require.NoError(t, err)
	w.wakeFD, err = unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	for fd, events := range map[int]uint32{b.d.WaitFD(): unix.EPOLLIN | unix.EPOLLET, w.wakeFD: unix.EPOLLIN} {
		require.NoError(t, unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events}))
	}
	for i := range uint64(min(4, b.d.RxDepth())) {
		b.post(a, func() error { return w.recv(i) })
	}
	go func() { w.done <- w.run() }()
	t.Cleanup(func() { w.end(t) })
	return w
}

// recv posts the i-th receive.
func (w *waiter) recv(i uint64) error {
	return w.b.d.Recv(w.b.ep.Core(), i, w.b.mem[len(w.b.mem)-1024*int(i+1):][:1024], w.b.mr.Desc())
}

func (w *waiter) run() error {
	var again []uint64 // receives to post again
	for !w.stop.Load() {
		w.loops.Add(1)
		comps, err := w.b.d.Poll(16)
		if err != nil {
			return err
		}
		for _, c := range comps {
			if c.Err != 0 {
				return c.Err
			}
			again = append(again, c.ID)
			w.got.Add(1)
		}
		for len(again) > 0 && w.recv(again[0]) == nil {
			again = again[1:]
		}
		if len(comps) > 0 || len(again) > 0 || !w.b.d.Arm() {
			continue
		}
		var ev [2]unix.EpollEvent
		if _, err := unix.EpollWait(w.epoll, ev[:], -1); err != nil && err != unix.EINTR {
			return err
		}
	}
	return nil
}

func (w *waiter) end(t *testing.T) {
	w.stop.Store(true)
	_, err := unix.Write(w.wakeFD, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	require.NoError(t, err)
	require.NoError(t, <-w.done)
	_, _ = unix.Close(w.epoll), unix.Close(w.wakeFD)
}
