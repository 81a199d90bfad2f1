package handshake

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/provider/shm/ipc"
)

var small = Sizes{Segment: 4096, Table: 8192, Shares: 4096}

const limit = 10 * time.Second

// end is one side: a listener, an endpoint, and what its owner was told.
type end struct {
	t     *testing.T
	l     *Listener
	e     *Endpoint
	fds   [3]int
	mem   unsafe.Pointer // of our segment
	sizes Sizes

	mu         sync.Mutex
	pid, pidfd int
	peer       *Peer
	bell       int
	errno      unix.Errno
	ended      bool
}

func (o *end) Identified(pid, pidfd int) { o.set(func() { o.pid, o.pidfd = pid, pidfd }) }
func (o *end) Accepted(sock int)         { o.set(func() { o.bell = sock }) }
func (o *end) Connected(p *Peer) error   { o.set(func() { o.peer = p }); return nil }
func (o *end) Failed(errno unix.Errno, ended bool) {
	o.set(func() { o.errno, o.ended = errno, ended })
}

func (o *end) set(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

func (o *end) met() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.peer != nil
}

func (o *end) both() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.peer != nil && o.bell >= 0
}

func (o *end) failed() unix.Errno {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.errno
}

func (o *end) callers() int {
	o.l.mu.Lock()
	defer o.l.mu.Unlock()
	return len(o.l.callers)
}

// eventually asks in the test's own goroutine: there is none more.
func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for from := time.Now(); !is(); time.Sleep(time.Millisecond) {
		require.Less(t, time.Since(from), limit)
	}
}

func newListener(t *testing.T) *Listener {
	l, err := Listen(small)
	require.NoError(t, err)
	return l
}

// newEnd opens an endpoint of that listener; nil: of one of its own.
func newEnd(t *testing.T, l *Listener) *end {
	o := &end{t: t, l: l, sizes: small, bell: -1, pidfd: -1}
	if l == nil {
		o.l = newListener(t)
	}
	for i, size := range []uintptr{small.Segment, small.Table, small.Shares} {
		mem, fd, err := ipc.Segment(size, i > 0)
		require.NoError(t, err)
		if o.fds[i] = fd; i == 0 {
			o.mem = mem
		} else {
			require.NoError(t, unix.MunmapPtr(mem, size))
		}
	}
	var err error
	o.e, err = o.l.Open(o, o.fds[0], o.fds[1], o.fds[2])
	require.NoError(t, err)
	if l == nil {
		t.Cleanup(o.l.Close)
	}
	t.Cleanup(o.close)
	return o
}

func (o *end) close() {
	o.e.Close()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.peer != nil {
		o.peer.drop(small)
	}
	ipc.CloseAll(o.fds[1:])
	for _, fd := range []int{o.bell, o.pidfd} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	o.peer, o.bell, o.pidfd, o.fds = nil, -1, -1, [3]int{-1, -1, -1}
}

func (o *end) connect(to *end) error { return o.e.Connect(to.l.Name(), to.e.Token()) }

func join(t *testing.T, a, b *end) {
	require.NoError(t, a.connect(b))
	require.NoError(t, b.connect(a))
	eventually(t, func() bool { return a.both() && b.both() })
}

func dial(t *testing.T, o *end) *ipc.Conn {
	c, err := ipc.Dial(o.l.Name())
	require.NoError(t, err)
	return c
}

// hungUp waits until the other end has closed a connection.
func hungUp(t *testing.T, c *ipc.Conn) {
	t.Helper()
	c.Deadline(time.Now().Add(limit))
	n, err := c.Recv(make([]byte, 8))
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Zero(t, n)
}

func descriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

func greeting(to *end) []byte {
	h := hello{magic, uint32(small.Segment), to.e.Token()}
	return h.encode()
}

// TestConnect: each has the other's memory and doorbell, and knows who it is. Nothing is left of it.
func TestConnect(t *testing.T) {
	newEnd(t, nil) // whatever the runtime opens by itself
	fds, routines := descriptors(t), runtime.NumGoroutine()
	l := newListener(t)
	a, b := newEnd(t, l), newEnd(t, l)
	require.Nil(t, a.e.Err())
	join(t, a, b)
	*(*byte)(a.mem) = 42
	require.Equal(t, byte(42), *(*byte)(b.peer.Segment))
	require.True(t, a.peer.Self)
	require.Equal(t, -1, a.peer.Memory)
	require.Equal(t, os.Getpid(), a.pid)
	require.NoError(t, unix.Send(a.bell, []byte{0}, 0))
	n, err := unix.Read(b.peer.Sock, make([]byte, 8))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, unix.EISCONN, ipc.Errno(a.connect(b)))
	a.close()
	b.close()
	l.Close()
	eventually(t, func() bool { return descriptors(t) == fds && runtime.NumGoroutine() <= routines })
}

// TestStrayDatagrams: eleven fill the queue of a socket that takes datagrams; hundreds are more than any. The two connect all the same, while
// as many connections say nothing, or junk.
func TestStrayDatagrams(t *testing.T) {
	for _, many := range []int{11, 400} {
		a, b := newEnd(t, nil), newEnd(t, nil)
		d, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		require.NoError(t, err)
		var pests []*ipc.Conn
		for _, at := range []*end{a, b} {
			for i := range many {
				_ = unix.Sendto(d, make([]byte, i%64), unix.MSG_DONTWAIT, &unix.SockaddrUnix{Name: "@" + string(at.l.Name()[1:])})
				if c, err := ipc.Dial(at.l.Name()); err == nil {
					pests = append(pests, c)
					if i%2 == 1 {
						_ = c.Send(make([]byte, i%64))
					}
				}
			}
		}
		join(t, a, b)
		for _, c := range pests {
			c.Close()
		}
		_ = unix.Close(d)
	}
}

// TestSilentCallers: connections that say nothing wait, a moment, and a peer that comes behind them is taken in at once.
func TestSilentCallers(t *testing.T) {
	const calls = 64
	for first := 0; first <= calls; first += calls / 2 {
		l := newListener(t)
		a, b := newEnd(t, l), newEnd(t, nil)
		var silent []*ipc.Conn
		for i := range calls + 1 {
			if i == first {
				require.NoError(t, b.connect(a))
			}
			silent = append(silent, dial(t, a))
		}
		eventually(t, a.met)
		require.Zero(t, a.failed())
		eventually(t, func() bool { return a.callers() == 0 }) // nobody else is waited for
		for _, c := range silent {
			hungUp(t, c)
			c.Close()
		}
		newEnd(t, l) // the listener takes connections in
		from := time.Now()
		for i := range calls {
			silent[i] = dial(t, a)
		}
		eventually(t, func() bool { n := a.callers(); return n > 0 && n <= unproved })
		last := silent[calls-1]
		hungUp(t, last)
		require.Greater(t, time.Since(from), proveIn/2)
		eventually(t, func() bool { return a.callers() == 0 })
		for _, c := range silent {
			c.Close()
		}
	}
}

// TestConnectsAgain: a peer whose connection was let go before its token was seen, or for which there was no room, connects again.
func TestConnectsAgain(t *testing.T) {
	t.Run("let go", func(t *testing.T) {
		a, b := newEnd(t, nil), newEnd(t, nil)
		a.l.mu.Lock() // it takes nobody in
		a.l.waiting = map[Token]*Endpoint{}
		a.l.mu.Unlock()
		require.NoError(t, b.connect(a))
		time.Sleep(20 * time.Millisecond)
		require.False(t, a.met())
		a.l.mu.Lock()
		a.l.waiting[a.e.token] = a.e
		a.l.mu.Unlock()
		require.NoError(t, a.connect(b))
		eventually(t, func() bool { return a.both() && b.both() })
		b.e.mu.Lock()
		defer b.e.mu.Unlock()
		require.Equal(t, -1, b.e.rights[0]) // the peer has it
	})
	t.Run("no room", func(t *testing.T) {
		sock, err := ipc.Listen(0)
		require.NoError(t, err)
		var fill []*ipc.Conn
		for {
			c, err := ipc.Dial(sock.Name())
			if err != nil {
				require.ErrorIs(t, err, unix.EAGAIN)
				break
			}
			fill = append(fill, c)
		}
		b := newEnd(t, nil)
		require.NoError(t, b.e.Connect(sock.Name(), Token{}))
		for range fill {
			c, err := sock.Accept()
			require.NoError(t, err)
			c.Close()
		}
		c, err := sock.Accept()
		require.NoError(t, err)
		buf := make([]byte, 64)
		n, err := c.Recv(buf)
		require.NoError(t, err)
		require.Equal(t, helloSize, n)
		for _, c := range append(fill, c) {
			c.Close()
		}
		sock.Close()
	})
}

// TestNeverAccepted: a peer that never takes our connection: the endpoint says so, in the end.
func TestNeverAccepted(t *testing.T) {
	a, b := newEnd(t, nil), newEnd(t, nil)
	wrong := a.e.Token()
	wrong[0] ^= 1
	require.NoError(t, b.e.Connect(a.l.Name(), wrong))
	eventually(t, func() bool { return b.failed() != 0 })
	require.Equal(t, unix.ECONNREFUSED, b.failed())
	require.ErrorContains(t, b.e.Err(), "closes our connections")
	require.False(t, a.met())
}

// TestStrangers: what is said wrongly is nobody's.
func TestStrangers(t *testing.T) {
	a := newEnd(t, nil)
	for i := range 40 {
		c := dial(t, a)
		_ = c.Send(make([]byte, i*7))
		hungUp(t, c)
		c.Close()
	}
	good := greeting(a)
	for i := range good {
		bad := append([]byte{}, good...)
		bad[i] ^= 1
		c := dial(t, a)
		_ = c.Send(bad)
		hungUp(t, c)
		c.Close()
	}
	c := dial(t, a)
	defer c.Close()
	_ = c.Send(append(good, 0))
	hungUp(t, c)
	require.False(t, a.met())
	require.Equal(t, -1, a.pidfd)
	join(t, a, newEnd(t, nil))
}

// TestOldestGoes: one that comes when all places are taken, and shows its token later, has the place of the oldest.
func TestOldestGoes(t *testing.T) {
	a := newEnd(t, nil)
	var silent []*ipc.Conn
	for range unproved {
		silent = append(silent, dial(t, a))
	}
	eventually(t, func() bool { return a.callers() == unproved })
	mine := dial(t, a)
	defer mine.Close()
	hungUp(t, silent[0])
	require.NoError(t, mine.Send(greeting(a)))
	n, err := mine.Recv(make([]byte, 8))
	require.NoError(t, err)
	require.Equal(t, 1, n) // the token was right
	for _, c := range silent {
		hungUp(t, c)
		c.Close()
	}
}

// TestSecondCaller: the token works once.
func TestSecondCaller(t *testing.T) {
	l := newListener(t)
	a, b, c := newEnd(t, l), newEnd(t, nil), newEnd(t, nil)
	newEnd(t, l) // the listener takes connections in
	require.NoError(t, b.connect(a))
	eventually(t, a.met)
	peer := a.peer
	require.NoError(t, c.connect(a))
	other := dial(t, a)
	defer other.Close()
	require.NoError(t, other.Send(greeting(a)))
	hungUp(t, other)
	require.NoError(t, a.connect(b))
	eventually(t, func() bool { return a.both() && b.both() })
	require.Same(t, peer, a.peer)
	require.False(t, c.both())
}

// TestBadGreeting: memory that could shrink is not mapped, and the endpoint is of no use.
func TestBadGreeting(t *testing.T) {
	for i := range 3 {
		a, b := newEnd(t, nil), newEnd(t, nil)
		before := descriptors(t)
		loose, err := unix.MemfdCreate("loose", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		require.NoError(t, err)
		require.NoError(t, unix.Ftruncate(loose, int64(small.Segment)))
		good := b.e.rights[i]
		b.e.rights[i] = loose
		require.NoError(t, b.connect(a))
		eventually(t, func() bool { return a.failed() != 0 })
		require.Equal(t, unix.EPROTO, a.failed())
		require.ErrorContains(t, a.connect(b), "mapping what the peer shares")
		b.e.Close()
		b.e.rights[i] = -1
		_ = unix.Close(good)
		_ = unix.Close(loose)
		eventually(t, func() bool { return descriptors(t) <= before+1 }) // the process
	}
}

// TestManyDescriptors: more than are due, before the token, with it, instead of what a greeting has, and behind it: none of them stays open.
func TestManyDescriptors(t *testing.T) {
	for _, many := range []int{1, 2, 4, 5, 100} {
		a := newEnd(t, nil)
		fds := make([]int, many)
		before := descriptors(t)
		c := dial(t, a)
		require.NoError(t, c.Send([]byte("x"), fds...))
		hungUp(t, c)
		c.Close()
		require.Equal(t, before, descriptors(t))
		c = dial(t, a)
		require.NoError(t, c.Send(greeting(a), fds...))
		n, err := c.Recv(make([]byte, 8))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, before+3, descriptors(t)) // c, its other end, the process
		h := hello{Magic: magic}
		require.NoError(t, c.Send(h.encode()[:4], fds...))
		eventually(t, func() bool { return a.failed() != 0 })
		require.Equal(t, unix.EPROTO, a.failed())
		hungUp(t, c)
		require.Equal(t, before+2, descriptors(t))
		c.Close()
		a.close()
	}
}

// few leaves no descriptor free until its result is called.
func few(t *testing.T) (again func()) {
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	next, err := unix.Dup(0)
	require.NoError(t, err)
	_ = unix.Close(next)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next), Max: was.Max}))
	return func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }
}

// TestNoDescriptors: without any for the peer's connection for longer than a moment: an error that says so. For a moment: the peer is taken in when
// there are some again.
func TestNoDescriptors(t *testing.T) {
	for _, moment := range []bool{false, true} {
		t.Run(fmt.Sprintf("moment=%v", moment), func(t *testing.T) {
			a := newEnd(t, nil)
			c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			defer unix.Close(c)
			again := few(t)
			from := time.Now()
			err = unix.Connect(c, &unix.SockaddrUnix{Name: "@" + string(a.l.Name()[1:])})
			if err == nil {
				err = unix.Send(c, greeting(a), unix.MSG_NOSIGNAL)
			}
			if moment {
				time.Sleep(100 * time.Millisecond)
			}
			for !moment && a.failed() == 0 && time.Since(from) < limit {
				time.Sleep(time.Millisecond)
			}
			again()
			require.NoError(t, err)
			if moment {
				n, err := unix.Read(c, make([]byte, 8))
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.Zero(t, a.failed())
				return
			}
			require.Equal(t, unix.EMFILE, a.failed())
			require.Greater(t, time.Since(from), shortFor)
		})
	}
}

// TestCloseEndsAll: whatever a peer does not say, or take, a close ends; nothing is left running.
func TestCloseEndsAll(t *testing.T) {
	newEnd(t, nil)
	routines := runtime.NumGoroutine()
	for range 20 {
		l := newListener(t)
		a, b := newEnd(t, l), newEnd(t, l)
		silent, half := dial(t, a), dial(t, a)
		require.NoError(t, half.Send(greeting(a)))
		sock, err := ipc.Listen(16)
		require.NoError(t, err)
		require.NoError(t, b.e.Connect(sock.Name(), Token{})) // it never answers
		from := time.Now()
		a.close()
		b.close()
		l.Close()
		require.Less(t, time.Since(from), limit/2)
		hungUp(t, silent)
		silent.Close()
		half.Close()
		sock.Close()
	}
	eventually(t, func() bool { return runtime.NumGoroutine() <= routines })
}
