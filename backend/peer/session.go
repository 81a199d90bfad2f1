package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"gorail/backend/wire"
)

const (
	linger     = 40 * time.Millisecond // for the last frames and the Bye of a session that we end
	readBuffer = 4 << 10
)

// session is what Out and In have in common: its line, its queue, its liveness and its end.
type session struct {
	node    *Node
	inbound bool
	peer    string // for errors and logs
	handle  func(wire.Frame) error
	seek    func(urgent bool, avoid netip.Addr) // an initiator's: begins to look for another line, with mu held
	queue   *queue
	source  netip.Addr   // where an initiator's connection came from
	counted bool         // in Node.inbound; by Node.mu
	partial atomic.Int64 // bytes of the frame that is being read, in Node.frames

	ctx      context.Context // ends with the session
	cancel   context.CancelFunc
	readDone chan struct{} // the reader is done with the last line
	changed  chan struct{} // one token: there is a line, or an end

	live *liveness // set by start

	mu          sync.Mutex
	state       State
	cause       error          // why it is over
	line        *line          // nil while dialing, and while there is no path to the peer
	at          netip.AddrPort // where the last line leads, as line.addr
	broken      error          // why the last line was given up, while there is none,
	unpluggedAt time.Time      // and when
	running     bool           // the peer's process is watched, and has not ended
	reached     time.Time      // when an address of the peer accepted a connection last, while there is no line
	closeBy     time.Time      // set by an end with a Bye: the connection closes then at the latest
	got         uint64         // numbered frames taken in
	proof       wire.Mac       // of the Welcome: who resumes must know it
	try         uint64         // of the last Resume
}

func (n *Node) newSession(inbound bool, state State, peer string) *session {
	s := &session{node: n, inbound: inbound, peer: peer, state: state, queue: newQueue(n.cfg.QueueLimit),
		readDone: make(chan struct{}), changed: make(chan struct{}, 1)}
	if inbound {
		s.queue.total = &n.frames
	}
	s.ctx, s.cancel = context.WithCancel(n.ctx)
	return s
}

// State is where the session stands.
func (s *session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// remote is the address at the other end of the session's connection; the zero Addr while there is none.
func (s *session) remote() netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line == nil {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddrPort(s.line.conn.RemoteAddr().String())
	return a.Addr()
}

// attach gives the session a connection to shake hands on; false, and the connection is closed, when the session is over.
func (s *session) attach(c net.Conn, addr netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.over() {
		c.Close()
		return false
	}
	s.line, s.at, s.state = newLine(c, addr), addr, Hello
	return true
}

// detach closes a connection that led to nothing.
func (s *session) detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line != nil {
		s.line.conn.Close()
	}
	if !s.state.over() {
		s.line, s.state = nil, Dialing
	}
}

// start makes the session ready, with the Mac of its Welcome and what is to be written first; false when it is over.
func (s *session) start(proof wire.Mac, first []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.over() {
		return false
	}
	s.state, s.proof, s.line.first = Ready, proof, first
	s.live = newLiveness(s.node.cfg.PeerTimeout, s.node.cfg.heartbeat(), time.Now())
	_ = s.line.conn.SetDeadline(time.Time{})
	return true
}

// send queues frames; a full queue ends the session.
func (s *session) send(frames ...wire.Frame) {
	if !s.queue.push(frames...) {
		s.node.count.overflows.Add(1)
		s.end(Lost, fmt.Errorf("%w: %s: more than %d MiB wait to be sent or acknowledged", ErrOverflow, s.peer, s.node.cfg.QueueLimit>>20), nil)
	}
	s.node.shed()
}

// bye is the goodbye of a session, and of its engine when that ends.
func (s *session) bye(text string) *wire.Bye {
	return &wire.Bye{Text: clip(text), Gone: s.node.gone.Load()}
}

// end ends the session, once; later calls do nothing. With a bye it first sends what is queued, if there is a line, bounded
// by linger. It never waits.
func (s *session) end(to State, cause error, bye *wire.Bye) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(to, cause, bye)
}

func (s *session) endLocked(to State, cause error, bye *wire.Bye) {
	if s.state.over() {
		return
	}
	polite := s.state == Ready && bye != nil && s.line != nil
	s.state, s.cause = to, cause
	s.cancel()
	s.change()
	if polite {
		s.closeBy = time.Now().Add(linger)
		_ = s.line.conn.SetDeadline(s.closeBy)
		s.queue.finish(bye)
		return
	}
	s.queue.drop()
	if s.line != nil {
		s.line.conn.Close()
	}
}

// abort closes the connection of a session that is over.
func (s *session) abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue.drop()
	if s.line != nil {
		s.line.conn.Close()
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
	for err == nil {
		var l *line
		if l, err = s.await(); err == nil {
			err = s.read(l)
		}
	}
	var last *wire.Bye
	switch {
	case errors.Is(err, ErrHandler), errors.Is(err, ErrProtocol), errors.Is(err, ErrSilent):
		last = s.bye(err.Error())
	}
	s.end(Lost, err, last)
	close(s.readDone)
	return func() { <-written }
}

// read reads and handles the frames of one line. nil when it broke or was replaced; an error ends the session: it is one of the
// package's, with the peer's name.
func (s *session) read(l *line) error {
	r := bufio.NewReaderSize(heardReader{s, l}, readBuffer)
	defer s.holdPartial(0)
	for {
		f, err := wire.ReadFrame(r, 0)
		s.holdPartial(0)
		switch {
		case err == nil:
		case s.State().over(), errors.Is(err, ErrSilent), malformed(err):
			return s.explain(err)
		default:
			s.node.cfg.Log.Debug("control connection ended", "peer", s.peer, "error", err)
			s.broke(l, err)
			return nil
		}
		s.node.count.framesReceived.Add(1)
		if s.State().over() {
			_, _ = io.Copy(io.Discard, r) // until the other side has read our Bye: unread bytes would turn it into a reset
			return ErrClosed
		}
		if err := s.dispatch(l, f); err != nil {
			return err
		}
	}
}

func (s *session) dispatch(l *line, f wire.Frame) error {
	switch f := f.(type) {
	case *wire.Ping:
		s.queue.pong(f.Seq)
		return s.acked(l, f.Got)
	case *wire.Pong:
		return s.acked(l, f.Got)
	case *wire.Bye:
		err := fmt.Errorf("%w: %s: %s", ErrPeerClosed, s.peer, f.Text)
		if f.Gone {
			err = dead(err)
		}
		return err
	}
	if !s.takeIn(l) {
		return nil
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
		return fmt.Errorf("%w: %s: nothing heard for %v (option peer_timeout): it is stopped or starved of CPU time, or the network between is down",
			ErrSilent, s.peer, s.node.cfg.PeerTimeout)
	case malformed(err):
		return fmt.Errorf("%w: %s: %w", ErrProtocol, s.peer, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %s: closed without a goodbye", ErrDropped, s.peer)
	}
	return fmt.Errorf("%w: %s: %w", ErrDropped, s.peer, err)
}

// guard calls a handler and makes an error of a panic.
func (s *session) guard(what string, f func() error) error {
	return s.node.guard(s.peer, what, f)
}

// heardReader reads a line under the session's liveness. A deadline that turns out not to be the end loses no bytes.
type heardReader struct {
	s *session
	l *line
}

func (h heardReader) Read(p []byte) (int, error) {
	s := h.s
	for {
		s.mu.Lock()
		ending := !s.closeBy.IsZero()
		if !ending {
			_ = h.l.conn.SetReadDeadline(s.live.arm(time.Now()))
		}
		s.mu.Unlock()
		n, err := h.l.conn.Read(p)
		if n > 0 {
			s.live.hear(time.Now())
			s.holdPartial(s.partial.Load() + decoded*int64(n))
			return n, nil
		}
		if ending || !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err
		}
		now := time.Now()
		if s.live.expired(now) {
			if !s.alive(h.l) {
				return 0, ErrSilent
			}
			s.live.spare(now)
		}
		if s.seek != nil && s.live.uneasy(now) {
			s.mu.Lock()
			if s.line == h.l && !s.state.over() {
				s.seek(false, netip.Addr{})
			}
			s.mu.Unlock()
		}
	}
}
