// Package handshake connects two endpoints of one host. Each dials the socket that the other's rail listens on, shows the token of the endpoint
// that it wants, and then sends the descriptors of its segment, its table and its shares:
//
//	dialer                                          listener
//	connect                                         accept, check credentials, wait 100 ms at most for:
//	checks the listener's credentials
//	hello: magic, size of a segment, token   --->   finds the endpoint, identifies the process
//	magic, with three descriptors            --->
//	                                         <---   one byte: the token was right
//	the socket is the peer's doorbell               maps what came; the socket is heard for the peer's doorbell
//
// An endpoint is connected when it has done both. Any process of the network namespace can connect: until one shows the token of an endpoint that
// waits for its peer it gets a place among few, for a moment, and nothing of it is opened or mapped. No descriptor that a peer has, too, is read
// or written in a way that waits, but by a goroutine that a Close ends.
package handshake

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/provider/shm/ipc"
)

const (
	unproved = 16                     // connections that have shown no token, at a time: one more, and the oldest goes
	proveIn  = 100 * time.Millisecond // how long one may be silent
	backlog  = 4096
	shortFor = time.Second // descriptors may be used up for so long before those who wait hear of it
	shortNap = 10 * time.Millisecond

	magic = 0x6c6f6333
)

// Token shows that a connection is for one endpoint.
type Token [ipc.TokenSize]byte

// hello is the first message of a connection.
type hello struct {
	Magic, Segment uint32
	Token          Token
}

const helloSize = 4 + 4 + ipc.TokenSize

func (h *hello) encode() []byte {
	b := binary.NativeEndian.AppendUint32(make([]byte, 0, helloSize), h.Magic)
	return append(binary.NativeEndian.AppendUint32(b, h.Segment), h.Token[:]...)
}

// Sizes of what peers share, in bytes.
type Sizes struct{ Segment, Table, Shares uintptr }

// Listener is a rail's socket, and those that have connected and shown nothing yet. Safe for concurrent use.
type Listener struct {
	sock  *ipc.Listener
	sizes Sizes
	tasks sync.WaitGroup
	ended chan struct{} // closed by Close

	mu      sync.Mutex
	closed  bool
	waiting map[Token]*Endpoint // that no connection has named
	callers []*caller           // the oldest first
}

// caller is a connection whose token was not seen.
type caller struct {
	conn  *ipc.Conn
	since time.Time // when it was accepted
	ticks uint64    // likewise, ipc.Ticks
}

// Listen begins to accept. The error is an *ipc.Error.
func Listen(sizes Sizes) (*Listener, error) {
	sock, err := ipc.Listen(backlog)
	if err != nil {
		return nil, err
	}
	l := &Listener{sock: sock, sizes: sizes, ended: make(chan struct{}), waiting: map[Token]*Endpoint{}}
	l.tasks.Add(1)
	go l.accept()
	return l, nil
}

// Name is the socket's.
func (l *Listener) Name() []byte { return l.sock.Name() }

// Close ends what the Listener runs. Endpoints are closed by then.
func (l *Listener) Close() {
	l.mu.Lock()
	l.closed = true
	for _, c := range l.callers {
		c.conn.Close()
	}
	l.callers = nil
	l.mu.Unlock()
	close(l.ended)
	l.sock.Close()
	l.tasks.Wait()
}

func (l *Listener) accept() {
	defer l.tasks.Done()
	var short time.Time // since when connections can't be accepted for want of descriptors
	for {
		conn, err := l.sock.Accept()
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
			l.take(conn)
		case ipc.OutOfResources(err) && l.dropOldest():
		case ipc.OutOfResources(err) && short.IsZero():
			short = time.Now()
		case ipc.OutOfResources(err) && time.Since(short) > shortFor:
			short = time.Time{}
			l.giveUp(ipc.Fail("accept of the peer's connection", err))
		}
		if err != nil {
			l.nap()
		}
	}
}

// nap keeps a connection that can't be accepted from keeping a processor busy.
func (l *Listener) nap() {
	select {
	case <-l.ended:
	case <-time.After(shortNap):
	}
}

// giveUp tells all endpoints that wait: the connection of any of their peers may be among those that can't be accepted.
func (l *Listener) giveUp(err error) {
	l.mu.Lock()
	var all []*Endpoint
	for _, e := range l.waiting {
		all = append(all, e)
	}
	l.mu.Unlock()
	for _, e := range all {
		e.fail(err, false)
	}
}

// take hands a connection to the endpoint that it names; mostly its token is there already. Else it gets a place, if any endpoint waits.
func (l *Listener) take(conn *ipc.Conn) {
	c := &caller{conn, time.Now(), ipc.Ticks()}
	if _, err := conn.CheckUser(); err != nil {
		conn.Close()
		return
	}
	var b [helloSize + 1]byte
	n, err := conn.TryRecv(b[:])
	switch {
	case err == unix.EAGAIN && l.place(c):
		go l.wait(c)
	case err == unix.EAGAIN:
		conn.Close()
	default:
		l.mu.Lock()
		e := l.named(b[:n], err)
		if e != nil {
			l.tasks.Add(1)
		}
		l.mu.Unlock()
		if e == nil {
			conn.Close()
			return
		}
		go l.hand(c, e)
	}
}

func (l *Listener) place(c *caller) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.waiting) == 0 {
		return false
	}
	if len(l.callers) == unproved {
		l.callers[0].conn.Close()
		l.callers = slices.Delete(l.callers, 0, 1)
	}
	l.callers = append(l.callers, c)
	l.tasks.Add(1)
	return true
}

func (l *Listener) dropOldest() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.callers) == 0 {
		return false
	}
	l.callers[0].conn.Close()
	l.callers = slices.Delete(l.callers, 0, 1)
	return true
}

// wait is for a caller's first message.
func (l *Listener) wait(c *caller) {
	var b [helloSize + 1]byte
	c.conn.Deadline(c.since.Add(proveIn))
	n, err := c.conn.Recv(b[:])
	if errors.Is(err, os.ErrDeadlineExceeded) { // which counts from before we ran: it may be there
		c.conn.Deadline(time.Time{})
		n, err = c.conn.TryRecv(b[:])
	}
	l.hand(c, l.claim(c, b[:max(n, 0)], err))
}

// hand is the end of a caller, and of its task: its connection is an endpoint's, or closed.
func (l *Listener) hand(c *caller, e *Endpoint) {
	defer l.tasks.Done()
	if e == nil || !e.accept(c) {
		c.conn.Close()
	}
}

// claim takes the caller out, and the endpoint that it names, which no other gets. When none waits any more nobody is listened to.
func (l *Listener) claim(c *caller, b []byte, err error) *Endpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.callers, c)
	if i < 0 {
		return nil
	}
	l.callers = slices.Delete(l.callers, i, i+1)
	return l.named(b, err)
}

// named takes out the endpoint that a hello names; nil: there is none. With mu.
func (l *Listener) named(b []byte, err error) *Endpoint {
	if l.closed || err != nil || len(b) != helloSize {
		return nil
	}
	h := hello{Magic: magic, Segment: uint32(l.sizes.Segment), Token: Token(b[8:])}
	if !bytes.Equal(b, h.encode()) {
		return nil
	}
	e := l.waiting[h.Token]
	l.forget(e)
	return e
}

// forget takes an endpoint out of those that wait. With mu.
func (l *Listener) forget(e *Endpoint) {
	if e == nil || l.waiting[e.token] != e {
		return
	}
	delete(l.waiting, e.token)
	if len(l.waiting) > 0 {
		return
	}
	for _, c := range l.callers {
		c.conn.Close()
	}
	l.callers = nil
}
