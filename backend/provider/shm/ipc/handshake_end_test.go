package ipc

import (
	"encoding/hex"
	"os"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var small = SegmentSizes{Segment: 4096, Table: 8192, Shares: 4096, RingUnit: 8192}

// end is one side of a handshake: listener, endpoint, and what the endpoint reported.
type end struct {
	t     *testing.T
	l     *HandshakeListener
	e     *Handshake
	fds   [4]int
	mem   unsafe.Pointer // of our segment
	sizes SegmentSizes

	mu         sync.Mutex
	pid, pidfd int
	peer       *Peer
	doorbell   int
	moves      bool
	errno      unix.Errno
	ended      bool
}

func (o *end) Identified(pid, pidfd int)     { o.set(func() { o.pid, o.pidfd = pid, pidfd }) }
func (o *end) Accepted(sock int, moves bool) { o.set(func() { o.doorbell, o.moves = sock, moves }) }
func (o *end) Connected(p *Peer) error       { o.set(func() { o.peer = p }); return nil }
func (o *end) Failed(errno unix.Errno, ended bool) {
	o.set(func() { o.errno, o.ended = errno, ended })
}

func (o *end) set(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
}

func (o *end) hasPeer() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.peer != nil
}

func (o *end) complete() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.peer != nil && o.doorbell >= 0
}

func (o *end) failed() unix.Errno {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.errno
}

func (o *end) pending() int {
	o.l.mu.Lock()
	defer o.l.mu.Unlock()
	return len(o.l.pending)
}

// eventually polls in the test's own goroutine, because tests count goroutines.
func eventually(t *testing.T, is func() bool) {
	t.Helper()
	for from := time.Now(); !is(); time.Sleep(time.Millisecond) {
		require.Less(t, time.Since(from), limit)
	}
}

func newHandshakeListener(t *testing.T) *HandshakeListener {
	l, err := ListenHandshakes(small, &Host{})
	require.NoError(t, err)
	return l
}

// newEnd opens an endpoint of listener l; nil: of a new listener.
func newEnd(t *testing.T, l *HandshakeListener) *end {
	o := &end{t: t, l: l, sizes: small, doorbell: -1, pidfd: -1}
	if l == nil {
		o.l = newHandshakeListener(t)
	}
	for i, size := range []uintptr{small.Segment, small.Table, small.Shares} {
		mem, fd, err := Segment(size, i > 0)
		require.NoError(t, err)
		if o.fds[i] = fd; i == 0 {
			o.mem = mem
		} else {
			require.NoError(t, unix.MunmapPtr(mem, size))
		}
	}
	ring, fd, err := Ring(2 * small.RingUnit)
	require.NoError(t, err)
	require.NoError(t, unix.MunmapPtr(ring, uintptr(2*small.RingUnit)))
	o.fds[3] = fd
	o.e, err = o.l.Open(o, o.fds[0], o.fds[1], o.fds[2], o.fds[3])
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
	CloseAll(o.fds[1:3])
	for _, fd := range []int{o.doorbell, o.pidfd} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	o.peer, o.doorbell, o.pidfd, o.fds = nil, -1, -1, [4]int{-1, -1, -1, -1}
}

func (o *end) connect(to *end) error { return o.e.Connect(to.l.Place(), to.e.Token()) }

func join(t *testing.T, a, b *end) {
	require.NoError(t, a.connect(b))
	require.NoError(t, b.connect(a))
	eventually(t, func() bool { return a.complete() && b.complete() })
}

func dial(t *testing.T, o *end) *Conn {
	c, err := Dial(o.l.Place(), nil)
	require.NoError(t, err)
	return c
}

// hungUp waits until the other end has closed the connection.
func hungUp(t *testing.T, c *Conn) {
	t.Helper()
	c.Deadline(time.Now().Add(limit))
	n, err := c.Recv(make([]byte, 8))
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Zero(t, n)
}

func helloFor(to *end) []byte {
	own := to.l.Place()
	h := hello{helloMagic, uint32(small.Segment), to.e.Token(), own.NetNS, own.PidNS}
	return h.encode()
}

func unhexOf(t *testing.T, s string) []byte {
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}
