package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"gorail/backend/wire"
)

const (
	linger     = 40 * time.Millisecond // for the last frames and the Bye of a session that we end
	readBuffer = 4 << 10
)

// session is what Out and In have in common: a connection, its queue, its liveness and its end.
type session struct {
	node    *Node
	inbound bool
	peer    string // for errors and logs
	handle  func(wire.Frame) error
	queue   *queue

	ctx      context.Context // ends with the session
	cancel   context.CancelFunc
	readDone chan struct{} // the reader is done with the connection

	live *liveness // set by start

	mu      sync.Mutex
	state   State
	cause   error     // why it is over
	conn    net.Conn  // nil while dialing
	closeBy time.Time // set by an end with a Bye: the connection closes then at the latest
}

func (n *Node) newSession(inbound bool, state State, peer string) *session {
	s := &session{node: n, inbound: inbound, peer: peer, state: state, queue: newQueue(n.cfg.QueueLimit),
		readDone: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(n.ctx)
	return s
}

// State is where the session stands.
func (s *session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// attach gives the session a connection to shake hands on; false, and the connection is closed, when the session is over.
func (s *session) attach(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.over() {
		c.Close()
		return false
	}
	s.conn, s.state = c, Hello
	return true
}

// detach closes a connection that led to nothing.
func (s *session) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.Close()
	}
	if !s.state.over() {
		s.conn, s.state = nil, Dialing
	}
}

// start makes the session ready; false when it is over.
func (s *session) start() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.over() {
		return false
	}
	s.state = Ready
	s.live = newLiveness(s.node.cfg.PeerTimeout, time.Now())
	_ = s.conn.SetDeadline(time.Time{})
	return true
}

// send queues frames; a full queue ends the session.
func (s *session) send(frames ...wire.Frame) {
	if !s.queue.push(frames...) {
		s.node.count.overflows.Add(1)
		s.end(Lost, fmt.Errorf("%w: %s: more than %d MiB wait to be sent", ErrOverflow, s.peer, s.node.cfg.QueueLimit>>20), "")
	}
}

// end ends the session, once; later calls do nothing. With a bye it first sends what is queued, bounded by linger.
// It never waits.
func (s *session) end(to State, cause error, bye string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.over() {
		return
	}
	polite := s.state == Ready && bye != ""
	s.state, s.cause = to, cause
	s.cancel()
	if polite {
		s.closeBy = time.Now().Add(linger)
		_ = s.conn.SetDeadline(s.closeBy)
		s.queue.finish(&wire.Bye{Text: clip(bye)})
		return
	}
	s.queue.drop()
	if s.conn != nil {
		s.conn.Close()
	}
}

// abort closes the connection of a session that is over.
func (s *session) abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.drop()
	if s.conn != nil {
		s.conn.Close()
	}
}

// ended gives the final state and its cause.
func (s *session) ended() (State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.cause
}

// loop reads until the session ends; begin runs first, with the writer at work. The caller calls the handler's last method
// with what ended gives, and then wait.
func (s *session) loop(begin func() error) (wait func()) {
	written := make(chan struct{})
	s.node.spawn(func() {
		defer close(written)
		s.write()
	})
	err := begin()
	if err == nil {
		err = s.read()
	}
	bye := ""
	switch {
	case errors.Is(err, ErrHandler), errors.Is(err, ErrProtocol), errors.Is(err, ErrSilent):
		bye = err.Error()
	}
	s.end(Lost, err, bye)
	close(s.readDone)
	return func() { <-written }
}

// read reads and handles frames. Its error is one of the package's, with the peer's name.
func (s *session) read() error {
	r := bufio.NewReaderSize(heardReader{s}, readBuffer)
	for {
		f, err := wire.ReadFrame(r, 0)
		if err != nil {
			return s.explain(err)
		}
		s.node.count.framesReceived.Add(1)
		if s.State().over() {
			_, _ = io.Copy(io.Discard, r) // until the other side has read our Bye: unread bytes would turn it into a reset
			return ErrClosed
		}
		if err := s.dispatch(f); err != nil {
			return err
		}
	}
}

func (s *session) dispatch(f wire.Frame) error {
	switch f := f.(type) {
	case *wire.Ping:
		s.send(&wire.Pong{Seq: f.Seq})
		return nil
	case *wire.Pong:
		return nil
	case *wire.Bye:
		return fmt.Errorf("%w: %s: %s", ErrPeerClosed, s.peer, f.Text)
	}
	return s.guard(f.Type().String(), func() error { return s.handle(f) })
}

// unexpected is a frame that this side of a session never gets.
func (s *session) unexpected(f wire.Frame) error {
	return fmt.Errorf("%w: %s sent a frame of type %v", ErrProtocol, s.peer, f.Type())
}

// explain makes an error of the package out of one of the connection or the decoder.
func (s *session) explain(err error) error {
	switch {
	case errors.Is(err, ErrSilent):
		return fmt.Errorf("%w: %s: nothing heard for %v (option peer_timeout): it is stopped, or the network between is down",
			ErrSilent, s.peer, s.node.cfg.PeerTimeout)
	case malformed(err):
		return fmt.Errorf("%w: %s: %w", ErrProtocol, s.peer, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %s: closed without a goodbye: its process ended", ErrDropped, s.peer)
	}
	return fmt.Errorf("%w: %s: %w", ErrDropped, s.peer, err)
}

// guard calls a handler and makes an error of a panic.
func (s *session) guard(what string, f func() error) error {
	return s.node.guard(s.peer, what, f)
}

// heardReader reads the connection under the session's liveness. A deadline that turns out not to be the end loses no bytes.
type heardReader struct{ s *session }

func (h heardReader) Read(p []byte) (int, error) {
	s := h.s
	for {
		s.mu.Lock()
		ending := !s.closeBy.IsZero()
		if !ending {
			_ = s.conn.SetReadDeadline(s.live.arm(time.Now()))
		}
		s.mu.Unlock()
		n, err := s.conn.Read(p)
		if n > 0 {
			s.live.hear(time.Now())
			return n, nil
		}
		if ending || !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
		if s.live.expired(time.Now()) {
			return 0, ErrSilent
		}
	}
}
