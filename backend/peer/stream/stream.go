package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/peer/liveness"
	"gorail/backend/wire"
)

// Linger is for the last frames and the Bye of a stream that we end.
const Linger = 40 * time.Millisecond

// Stream is what both sides of a session have in common: its connection, its queue, its liveness and its end. Safe for concurrent use.
type Stream struct {
	env         *Env
	handler     Handler
	reconnector Reconnector // an initiator's; nil: we serve the stream
	peer        string      // for errors and logs
	queue       *queue
	partial     atomic.Int64 // bytes of the frame that is being read, in Env.Held

	ctx      context.Context // ends with the stream
	cancel   context.CancelFunc
	readDone chan struct{} // the reader is done with the last connection
	changed  chan struct{} // one token: there is a connection, or an end

	live *liveness.Monitor // set by Start

	mu      sync.Mutex
	state   State
	cause   error     // why it is over
	closeBy time.Time // set by an end with a Bye: the connection closes then at the latest
	path    path
	signs   signs
	resume  resumption
}

// path is where a stream runs. By Stream.mu.
type path struct {
	conn   *Conn          // nil while dialing, and while there is no path to the peer
	at     netip.AddrPort // where the last connection leads, as Conn.addr
	broken error          // why the last connection was given up, while there is none,
	since  time.Time      // and when
}

// signs are signs of life of the peer besides what it says. By Stream.mu.
type signs struct {
	running bool      // the peer's process is watched, and has not ended
	reached time.Time // when an address of the peer accepted a connection last, while there is no connection
}

// resumption is what a Resume tells or must know. By Stream.mu.
type resumption struct {
	got   uint64   // numbered frames taken in
	proof wire.Mac // of the Welcome: who resumes must know it
	try   uint64   // of the last Resume
}

// New makes a stream without a connection. reconnector is nil for one that we serve.
func New(env *Env, peer string, state State, handler Handler, reconnector Reconnector) *Stream {
	s := &Stream{env: env, handler: handler, reconnector: reconnector, peer: peer, state: state, queue: newQueue(env.QueueLimit),
		readDone: make(chan struct{}), changed: make(chan struct{}, 1)}
	if s.Inbound() {
		s.queue.total = &env.Held
	}
	s.ctx, s.cancel = context.WithCancel(env.Ctx)
	return s
}

// Inbound says that we serve the stream.
func (s *Stream) Inbound() bool { return s.reconnector == nil }

// Peer names the other side in errors and logs.
func (s *Stream) Peer() string { return s.peer }

// Context ends with the stream.
func (s *Stream) Context() context.Context { return s.ctx }

// Release ends what waits for the stream's context.
func (s *Stream) Release() { s.cancel() }

// State is where the session stands.
func (s *Stream) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Remote is the address at the other end of the connection; the zero Addr while there is none.
func (s *Stream) Remote() netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn == nil {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddrPort(s.path.conn.RemoteAddr().String())
	return a.Addr()
}

// HungUp says that the other side has closed the connection, or is gone, or there is none.
func (s *Stream) HungUp() bool {
	s.mu.Lock()
	c := s.path.conn
	s.mu.Unlock()
	return c == nil || liveness.LeftAlone(c.Conn)
}

// Silence is how long nothing was heard while we could have. The stream was Ready before.
func (s *Stream) Silence(now time.Time) time.Duration { return s.live.Silence(now) }

// Attach gives the stream a connection to handshake hands on; false, and the connection is closed, when the stream is over.
func (s *Stream) Attach(c net.Conn, addr netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Over() {
		c.Close()
		return false
	}
	s.path.conn, s.path.at, s.state = NewConn(c, addr, nil), addr, Hello
	return true
}

// Detach closes a connection that led to nothing.
func (s *Stream) Detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn != nil {
		s.path.conn.Close()
	}
	if !s.state.Over() {
		s.path.conn, s.state = nil, Dialing
	}
}

// Start makes the stream ready, with the Mac of its Welcome and what is to be written first; false when it is over.
func (s *Stream) Start(proof wire.Mac, first []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Over() {
		return false
	}
	s.state, s.resume.proof, s.path.conn.first = Ready, proof, first
	s.live = liveness.New(s.env.PeerTimeout, s.env.Heartbeat, time.Now())
	_ = s.path.conn.SetDeadline(time.Time{})
	return true
}

// Send queues frames; a full queue ends the stream. The frames belong to it from now on.
func (s *Stream) Send(frames ...wire.Frame) {
	if !s.queue.push(frames...) {
		s.env.Count.Overflows.Add(1)
		s.End(Lost, fmt.Errorf("%w: %s: more than %d MiB wait to be sent or acknowledged", ErrOverflow, s.peer, s.env.QueueLimit>>20), nil)
	}
	s.env.Shed()
}

// WaitRoom waits until no more than half of the queue's limit is yet to be written, the connection is lost, or the end.
func (s *Stream) WaitRoom() { s.queue.waitRoom() }

// Answered makes room for further keys requests.
func (s *Stream) Answered(ranges int) { s.queue.answered(ranges) }

// Held is how many bytes the stream takes: of frames that are queued, not acknowledged or being read.
func (s *Stream) Held() int { return s.queue.kept() + int(s.partial.Load()) }

// Bye is the goodbye of a stream, and of its engine when that ends.
func (s *Stream) Bye(text string) *wire.Bye {
	return &wire.Bye{Text: Clip(text), Gone: s.env.Gone.Load()}
}

// End ends the stream, once; later calls do nothing. With a bye it first sends what is queued, if there is a connection, bounded
// by Linger. It never waits.
func (s *Stream) End(to State, cause error, bye *wire.Bye) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(to, cause, bye)
}

// end is called with mu held.
func (s *Stream) end(to State, cause error, bye *wire.Bye) {
	if s.state.Over() {
		return
	}
	polite := s.state == Ready && bye != nil && s.path.conn != nil
	s.state, s.cause = to, cause
	s.cancel()
	s.change()
	if polite {
		s.closeBy = time.Now().Add(Linger)
		_ = s.path.conn.SetDeadline(s.closeBy)
		s.queue.finish(bye)
		return
	}
	s.drop()
}

// Abort closes the connection of a stream that is over.
func (s *Stream) Abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

// drop is called with mu held.
func (s *Stream) drop() {
	s.queue.drop()
	if s.path.conn != nil {
		s.path.conn.Close()
	}
}

// Ended gives the final state and its cause.
func (s *Stream) Ended() (State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.cause
}

// change wakes await.
func (s *Stream) change() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Explain makes an error of the package out of one of the connection or the decoder.
func (s *Stream) Explain(err error) error {
	switch {
	case errors.Is(err, ErrSilent):
		return fmt.Errorf("%w: %s: nothing heard for %v (option peer_timeout): it is stopped or starved of CPU time, or the network between is down",
			ErrSilent, s.peer, s.env.PeerTimeout)
	case Malformed(err):
		return fmt.Errorf("%w: %s: %w", ErrProtocol, s.peer, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %s: closed without a goodbye", ErrDropped, s.peer)
	}
	return fmt.Errorf("%w: %s: %w", ErrDropped, s.peer, err)
}
