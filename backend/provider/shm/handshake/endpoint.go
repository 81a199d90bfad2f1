package handshake

import (
	"crypto/rand"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/provider/shm/ipc"
)

// Owner is what an Endpoint tells. Its methods are called from goroutines of the Endpoint's, each once at most, and do not wait for it.
type Owner interface {
	// Identified: the process that has connected. pidfd is the owner's.
	Identified(pid, pidfd int)
	// Connected: what the peer shares, all of it the owner's. An error: nothing is.
	Connected(p *Peer) error
	// Accepted: the peer has our segment; sock, the owner's, is its doorbell.
	Accepted(sock int)
	// Failed: the endpoint is of no use. ended: the peer's process had by then.
	Failed(errno unix.Errno, ended bool)
}

// Peer is what a peer shares, mapped, and what is known of its process.
type Peer struct {
	Segment, Table, Shares unsafe.Pointer
	Sock                   int  // its doorbell to us
	Self                   bool // it is this very process
	Memory                 int  // its /proc/PID/mem, where we may copy for it; else -1
}

// numRights is how many descriptors an endpoint sends.
const numRights = 3

// Endpoint is one end of a connection that is being made. Safe for concurrent use.
type Endpoint struct {
	l      *Listener
	owner  Owner
	token  Token
	rights []int // descriptors of our segment, which is the Endpoint's, table and shares
	tasks  sync.WaitGroup
	ended  chan struct{} // closed with the first of an error and Close

	mu     sync.Mutex // below the Listener's
	closed bool
	err    error
	in     *ipc.Conn // the peer's connection to us, until it is the owner's
	out    *ipc.Conn // ours to the peer, likewise
	named  bool      // Connect was called
}

// Open makes an Endpoint that waits for its peer. segment is its own from now on; table and shares are not. The error is an *ipc.Error.
func (l *Listener) Open(owner Owner, segment, table, shares int) (*Endpoint, error) {
	e := &Endpoint{l: l, owner: owner, rights: []int{segment, table, shares}, ended: make(chan struct{})}
	if _, err := rand.Read(e.token[:]); err != nil {
		return nil, ipc.Fail("getrandom", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[e.token] = e
	return e, nil
}

// Token is what the peer has to show.
func (e *Endpoint) Token() Token { return e.token }

// Err is why the endpoint is of no use, an *ipc.Error, or nil.
func (e *Endpoint) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Close returns when the owner is told no more.
func (e *Endpoint) Close() {
	e.l.mu.Lock()
	e.l.forget(e)
	e.l.mu.Unlock()
	e.mu.Lock()
	if !e.closed && e.err == nil {
		close(e.ended)
	}
	e.closed = true
	e.hangUp()
	e.mu.Unlock()
	e.tasks.Wait()
	e.dropSegment()
}

// hangUp ends what the goroutines wait for. With mu.
func (e *Endpoint) hangUp() {
	if e.in != nil {
		e.in.Close()
	}
	if e.out != nil {
		e.out.Close()
	}
}

// fail ends the handshake, unless it has ended.
func (e *Endpoint) fail(err error, ended bool) {
	e.l.mu.Lock()
	e.l.forget(e)
	e.l.mu.Unlock()
	e.mu.Lock()
	over := e.closed || e.err != nil
	if !over {
		e.err = err
		close(e.ended)
		e.hangUp()
		e.tasks.Add(1) // the owner is told before Close returns
	}
	e.mu.Unlock()
	if !over {
		e.owner.Failed(ipc.Errno(err), ended)
		e.tasks.Done()
	}
}

// begin counts a task of the endpoint's and keeps its connection, unless the endpoint has ended.
func (e *Endpoint) begin(at **ipc.Conn, c *ipc.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.err != nil {
		return false
	}
	*at = c
	e.tasks.Add(1)
	return true
}

// release makes a connection the owner's: the socket, or -1 where the endpoint has ended.
func (e *Endpoint) release(at **ipc.Conn) (sock int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := *at
	*at = nil
	if e.closed || e.err != nil {
		return -1, unix.ESHUTDOWN
	}
	return c.Release()
}

// dropSegment closes our segment's descriptor: the peer has it.
func (e *Endpoint) dropSegment() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rights[0] >= 0 {
		_ = unix.Close(e.rights[0])
	}
	e.rights[0] = -1
}
