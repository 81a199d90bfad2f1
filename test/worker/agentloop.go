package worker

import (
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/nixlapi"
)

// slice limits how long a waiting command keeps the agent's thread.
const slice = time.Millisecond

// pollPause prevents a polling test process from starving its peer on a small machine. After every 64 polls without a
// result the pause doubles, up to longestPause.
const (
	pollPause    = 20 * time.Microsecond
	longestPause = 1280 * time.Microsecond
)

// slowPoll is the shortest pause that also follows successful polls.
const slowPoll = time.Millisecond

// idle counts polls without a result.
type idle int

// pause sleeps for d, or for longer after many polls.
func (n *idle) pause(d time.Duration) {
	*n++
	if d < slowPoll {
		d = min(d<<min(*n/64, 8), max(d, longestPause))
	}
	nap(d)
}

// nap sleeps. The agent's goroutine is locked to its thread: time.Sleep would cost a change of threads each way.
func nap(d time.Duration) {
	if d >= slowPoll {
		time.Sleep(d)
		return
	}
	ts := unix.NsecToTimespec(int64(d))
	_, _, _ = unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
}

// agent is one NIXL agent of the worker and the thread that calls it.
type agent struct {
	a     *nixlapi.Agent
	b     *nixlapi.Backend
	queue chan func() // nil: commands call from any thread

	mu      sync.Mutex // guards the fields below
	xfers   map[int]*xfer
	lists   map[int]*nixlapi.Dlist
	inbox   []nixlapi.Notif
	polling bool
	pause   time.Duration // between empty polls; from slowPoll on, between all polls
	pollErr *nixlapi.Error
}

type xfer struct {
	x    *nixlapi.Xfer
	last nixlapi.Status
}

func newAgentLoop(concurrent bool) *agent {
	g := &agent{xfers: map[int]*xfer{}, lists: map[int]*nixlapi.Dlist{}}
	if !concurrent {
		g.queue = make(chan func())
		go g.run()
	}
	return g
}

// run is the agent's thread. If enabled, it polls for notifications between commands.
func (g *agent) run() {
	runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
	defer preempted()
	var idle idle
	for {
		polling, pause := g.polls()
		if !polling {
			f, ok := <-g.queue
			if !ok {
				return
			}
			f()
			continue
		}
		select {
		case f, ok := <-g.queue:
			if !ok {
				return
			}
			f()
			idle = 0
		default:
			n := g.poll()
			if n > 0 {
				idle = 0
			}
			if pause > 0 && (n == 0 || pause >= slowPoll) {
				idle.pause(pause)
			}
		}
	}
}

// preempted leaves the thread with SIGURG pending, as if this process's Go runtime preempted the thread while it ends.
func preempted() {
	var urgent unix.Sigset_t
	urgent.Val[0] = 1 << (unix.SIGURG - 1)
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &urgent, nil)
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGURG)
}

// do runs f on the agent's thread and waits for it.
func (g *agent) do(f func()) {
	if g.queue == nil {
		f()
		return
	}
	done := make(chan struct{})
	g.queue <- func() { defer close(done); f() }
	<-done
}

// until calls cond on the agent's thread, in slices, until cond holds or the time is up.
func (g *agent) until(timeout time.Duration, cond func() bool) bool {
	ok := false
	var idle idle
	for end := time.Now().Add(timeout); !ok && time.Now().Before(end); {
		g.do(func() {
			for stop := time.Now().Add(slice); !ok && time.Now().Before(stop); {
				if ok = cond(); !ok {
					idle.pause(pollPause)
				}
			}
		})
	}
	return ok
}

// polls returns whether the thread polls between commands, and its pause.
func (g *agent) polls() (on bool, pause time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.polling, g.pause
}

func (g *agent) setPolling(on bool, pause time.Duration) {
	g.do(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.polling, g.pause = on, pause
	})
}

// poll moves new notifications into the inbox and returns their number.
func (g *agent) poll() int {
	n, err := g.a.Notifs()
	if len(n) == 0 && err == nil {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inbox = append(g.inbox, n...)
	if err != nil {
		g.pollErr = nixlError(err)
	}
	return len(n)
}

// take removes up to n notifications from the inbox.
func (g *agent) take(n int) []nixlapi.Notif {
	g.mu.Lock()
	defer g.mu.Unlock()
	n = min(n, len(g.inbox))
	out := g.inbox[:n:n]
	g.inbox = g.inbox[n:]
	return out
}

func (g *agent) inboxLen() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.inbox)
}

// close releases all requests and lists, and destroys the agent.
func (g *agent) close() error {
	var err error
	g.do(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.polling = false
		for _, x := range g.xfers {
			if x.x.Release() != nil {
				_ = x.x.Release() // the second release is final
			}
		}
		for _, l := range g.lists {
			_ = l.Release()
		}
		err = g.a.Close()
	})
	if g.queue != nil {
		close(g.queue)
	}
	return err
}

func nixlError(err error) *nixlapi.Error {
	if err == nil {
		return nil
	}
	return &nixlapi.Error{Call: callOf(err), Status: nixlapi.StatusOf(err)}
}
