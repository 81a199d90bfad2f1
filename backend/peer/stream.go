package peer

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

	"gorail/backend/host"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

// linger is the time for the last frames and the Bye of a stream that this side ends.
const linger = 40 * time.Millisecond

// stream is the part of a session that both sides have: its connection, queue, liveness and end. It is safe for
// concurrent use.
type stream struct {
	env *streamEnv
	callbacks
	reconnect reconnectFunc // set for an initiator; nil: inbound stream
	peer      string        // for errors and logs
	queue     *queue
	writing   *writing
	w         writer  // of the goroutine that writes
	r         reading // of the goroutine that reads

	ctx      context.Context // ends with the stream
	cancel   context.CancelFunc
	readDone chan struct{} // closed when the reader is done with the last connection
	changed  chan struct{} // one token: a new connection, or the end

	live *livenessMonitor // set by Start

	mu      sync.Mutex
	state   State
	cause   error     // why the stream ended
	closeBy time.Time // set by an end with a Bye: the latest time to close the connection
	path    path
	signs   signs
	resume  resumption
}

// callbacks are called in the stream's goroutine.
type callbacks struct {
	handle  frameHandler
	resumed resumedFunc // nil: nobody wants to know
}

// reading is what the reader notes for others.
type reading struct {
	partial atomic.Int64 // bytes of the frame being read, included in streamEnv.Held
	told    told         // by the other side's pings and pongs
}

// path describes the stream's current or last connection. stream.mu guards it.
type path struct {
	conn   *streamConn    // nil while dialing, and while the peer is not connected
	at     netip.AddrPort // address that the last connection leads to, as Conn.addr
	broken error          // why the last connection was given up, while there is none,
	since  time.Time      // and when
	parked []net.Conn     // see stream.park
}

// signs are signs of life of the peer other than its frames. stream.mu guards them.
type signs struct {
	running bool      // the peer's process is watched and has not ended
	reached time.Time // last time that an address of the peer accepted a connection while the stream had none
}

// resumption has the numbers that a Resume carries or checks. stream.mu guards it.
type resumption struct {
	got    uint64        // numbered frames received
	secret *trust.Secret // of the session; wiped at its end
	try    uint64        // of the last Resume
}

// newStream makes a stream without a connection. reconnect is nil for an inbound stream.
func newStream(env *streamEnv, peer string, state State, handle frameHandler, reconnect reconnectFunc) *stream {
	s := &stream{env: env, callbacks: callbacks{handle: handle}, reconnect: reconnect, peer: peer, state: state, readDone: make(chan struct{}), changed: make(chan struct{}, 1)}
	s.writing = newWriting(func() { env.Spawn(s.write) })
	s.queue = newQueue(env.QueueLimit, s.writing.wake)
	if s.Inbound() {
		s.queue.total = &env.Held
	}
	s.ctx, s.cancel = context.WithCancel(env.Ctx)
	return s
}

// Inbound reports whether this side is the target.
func (s *stream) Inbound() bool { return s.reconnect == nil }

// Peer returns the other side's name for errors and logs.
func (s *stream) Peer() string { return s.peer }

// Context returns the context that ends with the stream.
func (s *stream) Context() context.Context { return s.ctx }

// Release cancels the stream's context.
func (s *stream) Release() { s.cancel() }

// State returns the session's state.
func (s *stream) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// LastHeard is when the peer last sent anything; zero before Start.
func (s *stream) LastHeard() (at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live != nil {
		at = s.live.LastHeard()
	}
	return at
}

// Remote returns the remote address of the connection, the zero Addr without a connection.
func (s *stream) Remote() netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn == nil {
		return netip.Addr{}
	}
	a, _ := netip.ParseAddrPort(s.path.conn.RemoteAddr().String())
	return a.Addr()
}

// Packets says which packets of the connection do not arrive ("": none is known to be lost), and the counters behind that. No counters:
// there is no connection.
func (s *stream) Packets() (lost, counters string) {
	s.mu.Lock()
	c := s.path.conn
	s.mu.Unlock()
	if c == nil {
		return "", ""
	}
	info, ok := host.TCPInfo(c)
	if !ok {
		return "", ""
	}
	return host.LostPackets(&info, fmt.Sprintf("%s and %s", c.LocalAddr(), c.RemoteAddr()), false), host.PacketCounters(&info)
}

// HungUp reports whether the other side has closed the connection or is gone, or there is no connection.
func (s *stream) HungUp() bool {
	s.mu.Lock()
	c := s.path.conn
	s.mu.Unlock()
	return c == nil || closedByPeer(c.Conn)
}

// Silence returns how long this side could have heard from the peer and did not. The stream must have been Ready.
func (s *stream) Silence(now time.Time) time.Duration { return s.live.Silence(now) }

// Attach gives the stream a connection for a handshake. If the stream is over, it closes the connection and returns
// false.
func (s *stream) Attach(c net.Conn, addr netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Over() {
		c.Close()
		return false
	}
	s.path.conn, s.path.at, s.state = newStreamConn(c, addr, nil), addr, Hello
	return true
}

// Detach closes a connection whose handshake failed.
func (s *stream) Detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.path.conn != nil {
		s.path.conn.Close()
	}
	if !s.state.Over() {
		s.path.conn, s.state = nil, Dialing
	}
}

// Start makes the stream ready, with the session's secret and the first bytes to write. It returns false if the stream
// is over. The stream owns the secret, and wipes it at its end.
func (s *stream) Start(secret *trust.Secret, first []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Over() {
		secret.Wipe()
		return false
	}
	s.state, s.resume.secret, s.path.conn.first = Ready, secret, first
	s.live = newMonitor(s.env.PeerTimeout, s.env.Heartbeat, time.Now())
	if s.signs.running {
		s.live.Watched()
	}
	_ = s.path.conn.SetDeadline(time.Time{})
	return true
}

// Own gives the stream the session's secret before Start. The stream wipes it at its end.
func (s *stream) Own(secret *trust.Secret) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Over() {
		secret.Wipe()
		return
	}
	s.resume.secret = secret
}

// LinkSecret derives the secret of a link. After the end, and before Own or Start, it is random: no peer has it.
func (s *stream) LinkSecret(n trust.LinkName) *trust.LinkSecret {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.secret().Link(n)
}

// KeySalt is the salt of the session's keys of regions; random as LinkSecret's.
func (s *stream) KeySalt() [16]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.secret().KeySalt()
}

// secret needs mu.
func (s *stream) secret() *trust.Secret {
	if s.state.Over() || s.resume.secret == nil {
		return trust.NewSecret()
	}
	return s.resume.secret
}

// Send queues frames. A full queue ends the stream. The stream owns the frames from now on.
func (s *stream) Send(frames ...wire.Frame) {
	if !s.queue.push(frames...) {
		s.env.Count.Overflows.Add(1)
		s.End(Lost, fmt.Errorf("%w: %s: more than %d MiB wait to be sent or acknowledged", ErrOverflow, s.peer, s.env.QueueLimit>>20), nil)
	}
	s.env.Shed()
}

// WaitRoom waits until at most half of the queue's limit is unsent, the connection is lost, or the end.
func (s *stream) WaitRoom() { s.queue.waitRoom() }

// Answered makes room for further keys requests.
func (s *stream) Answered(ranges int) { s.queue.answered(ranges) }

// Held returns the bytes of the stream's frames that are queued, not acknowledged or being read.
func (s *stream) Held() int { return s.queue.kept() + int(s.r.partial.Load()) }

// Bye returns a Bye for the stream. It reports the end of the engine if the engine ends.
func (s *stream) Bye(text string) *wire.Bye {
	return &wire.Bye{Text: clipText(text), Gone: s.env.Gone.Load()}
}

// End ends the stream once; later calls do nothing. With a bye it first sends the queued frames and the bye if there
// is a connection, within Linger. It never waits.
func (s *stream) End(to State, cause error, bye *wire.Bye) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(to, cause, bye)
}

// end needs mu.
func (s *stream) end(to State, cause error, bye *wire.Bye) {
	if s.state.Over() {
		return
	}
	sendBye := s.state == Ready && bye != nil && s.path.conn != nil
	s.state, s.cause = to, cause
	s.resume.secret.Wipe() // no Resume is made, accepted or believed any more
	s.cancel()
	s.change()
	if sendBye {
		s.closeBy = time.Now().Add(linger)
		_ = s.path.conn.SetDeadline(s.closeBy)
		s.queue.finish(bye)
		return
	}
	s.drop()
}

// Abort closes the connection of a stream that is over.
func (s *stream) Abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

// drop needs mu.
func (s *stream) drop() {
	s.queue.drop()
	s.closeParked()
	if s.path.conn != nil {
		s.path.conn.Close()
	}
}

// Ended returns the final state and its cause.
func (s *stream) Ended() (State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.cause
}

// change wakes awaitConn.
func (s *stream) change() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Explain turns an error of the connection or the decoder into one of the package's errors.
func (s *stream) Explain(err error) error {
	switch {
	case errors.Is(err, ErrSilent):
		return fmt.Errorf("%w: %s: nothing heard for %v (option peer_timeout): the peer's process is stopped or starved of CPU time, or the network is down",
			ErrSilent, s.peer, s.env.PeerTimeout)
	case malformed(err):
		return fmt.Errorf("%w: %s: %w", ErrProtocol, s.peer, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %s: closed without a goodbye", ErrDropped, s.peer)
	}
	return fmt.Errorf("%w: %s: %w", ErrDropped, s.peer, err)
}
