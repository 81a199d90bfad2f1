package ipc

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// HandshakeOwner gets the results of a Handshake. Goroutines of the Handshake call each method once at most. The methods do not
// wait for the Handshake.
type HandshakeOwner interface {
	// Identified passes the process that has connected: pid is 0 if it has no number in our pid namespace, pidfd -1 if
	// the kernel gives none (Identify). The owner closes pidfd.
	Identified(pid, pidfd int)
	// Connected passes the peer's segments and descriptors. The owner releases them, unless Connected returns an
	// error.
	Connected(p *Peer) error
	// Accepted: the peer has our segment. sock is the peer's doorbell, and the owner closes it. moves: when both connections are there, the owner
	// shall use the peer's alone.
	Accepted(sock int, moves bool)
	// Failed: the endpoint is unusable. ended: the peer's process had ended by then.
	Failed(errno unix.Errno, ended bool)
}

// Peer has the mapped segments of a peer, its ring, and the facts about its process.
type Peer struct {
	Segment, Table, Shares unsafe.Pointer
	Ring                   unsafe.Pointer // the peer's ring of RingSize bytes; nil: the peer is this process
	RingSize               uint64
	Sock                   int  // the peer rings us over this socket
	Self                   bool // the peer is this process
	// Apart: all copies go through the peer's ring, because we may not access its memory. The peer may decide otherwise for its
	// own copies
	Apart  bool
	Assist bool // we may copy for the peer
}

// numRights is the number of descriptors that an endpoint sends.
const numRights = 4

// Handshake is one end of a handshake. It is safe for concurrent use.
type Handshake struct {
	l      *HandshakeListener
	owner  HandshakeOwner
	token  Token
	rights []int // of our segment, table, shares and ring; the Handshake closes the segment's and the ring's
	tasks  sync.WaitGroup
	ended  chan struct{} // closed by the first error or by Close

	mu         sync.Mutex // taken after the HandshakeListener's mu
	closed     bool
	err        error
	in         *Conn // the peer's connection to us; nil after release
	out        *Conn // our connection to the peer; nil after release
	connecting bool  // Connect was called
}

// Open makes a Handshake that waits for its peer. The Handshake closes the descriptors segment and ring; the caller keeps
// table and shares. The error is an *Error.
func (l *HandshakeListener) Open(owner HandshakeOwner, segment, table, shares, ring int) (*Handshake, error) {
	e := &Handshake{l: l, owner: owner, rights: []int{segment, table, shares, ring}, ended: make(chan struct{})}
	if _, err := rand.Read(e.token[:]); err != nil {
		return nil, Fail("getrandom", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[e.token] = e
	return e, nil
}

// Token is the token that the peer must show.
func (e *Handshake) Token() Token { return e.token }

// Err is the *Error that made the endpoint unusable, or nil.
func (e *Handshake) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// Close ends the handshake. It returns after the last call of the owner.
func (e *Handshake) Close() {
	e.l.mu.Lock()
	e.l.remove(e)
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

// hangUp closes the connections and so ends the waits of the goroutines. With mu.
func (e *Handshake) hangUp() {
	if e.in != nil {
		e.in.Close()
	}
	if e.out != nil {
		e.out.Close()
	}
}

// fail ends the handshake with an error, unless the handshake has ended.
func (e *Handshake) fail(err error, ended bool) {
	e.l.mu.Lock()
	e.l.remove(e)
	e.l.mu.Unlock()
	e.mu.Lock()
	over := e.closed || e.err != nil
	if !over {
		e.err = err
		close(e.ended)
		e.hangUp()
		e.tasks.Add(1) // Close waits for the call of Failed
	}
	e.mu.Unlock()
	if !over {
		e.owner.Failed(Errno(err), ended)
		e.tasks.Done()
	}
}

// startTask counts a task of the endpoint and stores its connection. False: the endpoint has ended.
func (e *Handshake) startTask(at **Conn, c *Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.err != nil {
		return false
	}
	*at = c
	e.tasks.Add(1)
	return true
}

// release hands the socket of a connection over to the owner. sock is -1 if the endpoint has ended.
func (e *Handshake) release(at **Conn) (sock int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := *at
	*at = nil
	if e.closed || e.err != nil {
		return -1, unix.ESHUTDOWN
	}
	return c.Release()
}

// dropSegment closes our descriptors of the segment and the ring. After a completed handshake the peer has its own.
func (e *Handshake) dropSegment() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, i := range []int{0, numRights - 1} {
		if e.rights[i] >= 0 {
			_ = unix.Close(e.rights[i])
		}
		e.rights[i] = -1
	}
}

const helloMagic = 0x6c6f6335

// hello is the first message of a connection. The namespaces are a claim of the peer: the kernel decides whether we
// may copy to its memory.
type hello struct {
	Magic, Segment uint32
	Token          Token
	NetNS, PidNS   uint64
}

// helloFollows is the listener's answer: when both connections are there, the dialer may move to the listener's own, and the listener will follow. The
// end with the greater token does. Engines of earlier versions answer 0, and two connections stay.
const helloFollows = 1

const helloSize = 4 + 4 + TokenSize + 8 + 8

func (h *hello) encode() []byte {
	b := binary.NativeEndian.AppendUint32(make([]byte, 0, helloSize), h.Magic)
	b = append(binary.NativeEndian.AppendUint32(b, h.Segment), h.Token[:]...)
	return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(b, h.NetNS), h.PidNS)
}

func (h *hello) decode(b []byte) {
	h.Magic, h.Segment, h.Token = binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[4:]), Token(b[8:])
	h.NetNS, h.PidNS = binary.NativeEndian.Uint64(b[8+TokenSize:]), binary.NativeEndian.Uint64(b[16+TokenSize:])
}
