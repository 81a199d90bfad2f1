package ipc

import (
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxPending       = 16                     // unauthenticated connections at a time; one more evicts the oldest
	tokenTimeout     = 100 * time.Millisecond // for the hello of a pending connection
	handshakeBacklog = 4096
	shortageLimit    = time.Second // a shortage of descriptors that lasts longer fails the waiting endpoints
	handshakeRetry   = 10 * time.Millisecond
)

// SegmentSizes are the sizes of the shared segments in bytes. A ring's size is a multiple of RingUnit.
type SegmentSizes struct {
	Segment, Table, Shares uintptr
	RingUnit               uint64
	Rings                  bool // copy through rings, as if the kernel forbade access to peers' memory
}

// HandshakeListener has a rail's sockets with their pending connections. It is safe for concurrent use.
type HandshakeListener struct {
	host  *Host
	socks *Sockets
	sizes SegmentSizes
	tasks sync.WaitGroup
	ended chan struct{} // closed by Close

	mu      sync.Mutex
	closed  bool
	waiting map[Token]*Handshake // endpoints that no connection has claimed
	pending []*pendingConn       // oldest first
	evicted uint64               // pending connections that made room
}

// pendingConn is a connection that has not shown a token.
type pendingConn struct {
	conn  *Conn
	since time.Time // time of the accept
	ticks uint64    // Ticks at the accept
	hello hello     // once it has come
}

// ListenHandshakes opens a HandshakeListener and starts to accept. The error is an *Error.
func ListenHandshakes(sizes SegmentSizes, host *Host) (*HandshakeListener, error) {
	socks, err := host.Listen(handshakeBacklog)
	if err != nil {
		return nil, err
	}
	l := &HandshakeListener{host: host, socks: socks, sizes: sizes, ended: make(chan struct{}), waiting: map[Token]*Handshake{}}
	for _, sock := range socks.Listeners() {
		l.tasks.Add(1)
		go l.accept(sock)
	}
	return l, nil
}

// Place is where peers connect.
func (l *HandshakeListener) Place() *Place { return l.socks.Place() }

// NotInside says why no socket is in the host's folder; nil: one is there, or there is no folder.
func (l *HandshakeListener) NotInside() error { return l.socks.NotInside }

// Close ends the listener's goroutines. All endpoints must be closed.
func (l *HandshakeListener) Close() {
	l.mu.Lock()
	l.closed = true
	for _, c := range l.pending {
		c.conn.Close()
	}
	l.pending = nil
	l.mu.Unlock()
	close(l.ended)
	l.socks.Close()
	l.tasks.Wait()
}

func (l *HandshakeListener) accept(sock *Listener) {
	defer l.tasks.Done()
	var short time.Time // start of a shortage of descriptors; zero: none
	for {
		conn, err := sock.Accept()
		select {
		case <-l.ended:
			if err == nil {
				conn.Close()
			}
			return
		default:
		}
		switch {
		case err == nil:
			short = time.Time{}
			l.admit(conn)
		case OutOfResources(err) && l.evictOldest():
		case OutOfResources(err) && short.IsZero():
			short = time.Now()
		case OutOfResources(err) && time.Since(short) > shortageLimit:
			short = time.Time{}
			l.failWaiting(Fail("accept the peer's connection", err))
		}
		if err != nil {
			l.pause()
		}
	}
}

// pause keeps accept from spinning on a connection that cannot be accepted.
func (l *HandshakeListener) pause() {
	select {
	case <-l.ended:
	case <-time.After(handshakeRetry):
	}
}

// failWaiting fails all waiting endpoints: any of their peers may be among the connections that cannot be accepted.
func (l *HandshakeListener) failWaiting(err error) {
	l.mu.Lock()
	var all []*Handshake
	for _, e := range l.waiting {
		all = append(all, e)
	}
	l.mu.Unlock()
	for _, e := range all {
		e.fail(err, false)
	}
}

// admit passes a connection to the endpoint whose token it shows. The hello is usually there already. Otherwise the
// connection becomes a pending one, if any endpoint waits.
func (l *HandshakeListener) admit(conn *Conn) {
	c := &pendingConn{conn: conn, since: time.Now(), ticks: Ticks()}
	var b [helloSize + 1]byte
	n, err := conn.TryRecv(b[:])
	switch {
	case err == unix.EAGAIN && l.addPending(c):
		go l.wait(c)
	case err == unix.EAGAIN:
		conn.Close()
	default:
		l.mu.Lock()
		e := l.lookup(c, b[:n], err)
		if e != nil {
			l.tasks.Add(1)
		}
		l.mu.Unlock()
		if e == nil {
			conn.Close()
			return
		}
		go l.handOver(c, e)
	}
}

func (l *HandshakeListener) addPending(c *pendingConn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.waiting) == 0 {
		return false
	}
	if len(l.pending) == maxPending {
		l.evict()
	}
	l.pending = append(l.pending, c) //limit:shm_pending
	l.tasks.Add(1)
	return true
}

func (l *HandshakeListener) evictOldest() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) == 0 {
		return false
	}
	l.evict()
	return true
}

// evict closes the oldest pending connection. With mu.
func (l *HandshakeListener) evict() {
	l.pending[0].conn.Close()
	l.pending = slices.Delete(l.pending, 0, 1)
	l.evicted++
}

// Evicted is the number of pending connections that made room for others.
func (l *HandshakeListener) Evicted() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.evicted
}

// wait receives the hello of a pending connection.
func (l *HandshakeListener) wait(c *pendingConn) {
	var b [helloSize + 1]byte
	c.conn.Deadline(c.since.Add(tokenTimeout))
	n, err := c.conn.Recv(b[:])
	if errors.Is(err, os.ErrDeadlineExceeded) { // the deadline counts from the accept: the hello may have arrived meanwhile
		c.conn.Deadline(time.Time{})
		n, err = c.conn.TryRecv(b[:])
	}
	l.handOver(c, l.claim(c, b[:max(n, 0)], err))
}

// handOver gives the connection to its endpoint or closes it. It ends the connection's task.
func (l *HandshakeListener) handOver(c *pendingConn, e *Handshake) {
	defer l.tasks.Done()
	if e == nil || !e.accept(c) {
		c.conn.Close()
	}
}

// claim removes a pending connection and returns the endpoint whose token it shows. No other connection can claim
// that endpoint. Without waiting endpoints all pending connections are closed.
func (l *HandshakeListener) claim(c *pendingConn, b []byte, err error) *Handshake {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.pending, c)
	if i < 0 {
		return nil
	}
	l.pending = slices.Delete(l.pending, i, i+1)
	return l.lookup(c, b, err)
}

// lookup removes and returns the waiting endpoint that a hello names; nil: there is none. With mu.
func (l *HandshakeListener) lookup(c *pendingConn, b []byte, err error) *Handshake {
	if l.closed || err != nil || len(b) != helloSize {
		return nil
	}
	if c.hello.decode(b); c.hello.Magic != helloMagic || c.hello.Segment != uint32(l.sizes.Segment) {
		return nil
	}
	e := l.waiting[c.hello.Token]
	l.remove(e)
	return e
}

// remove takes an endpoint from the waiting ones. It closes all pending connections when no endpoint waits any more.
// With mu.
func (l *HandshakeListener) remove(e *Handshake) {
	if e == nil || l.waiting[e.token] != e {
		return
	}
	delete(l.waiting, e.token)
	if len(l.waiting) > 0 {
		return
	}
	for _, c := range l.pending {
		c.conn.Close()
	}
	l.pending = nil
}
