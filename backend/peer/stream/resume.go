package stream

import (
	"net"
	"net/netip"
	"time"

	"gorail/backend/wire"
)

// Locked is a stream under its lock: what is decided of it and done to it in one step. It is valid within Do alone, where nothing else
// of the stream's may be called.
type Locked struct{ s *Stream }

// Do calls f with the stream's lock held. f must not wait.
func (s *Stream) Do(f func(l Locked)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(Locked{s})
}

// State is where the stream stands.
func (l Locked) State() State { return l.s.state }

// Connected says that the stream has a connection.
func (l Locked) Connected() bool { return l.s.path.conn != nil }

// At is where the last connection leads.
func (l Locked) At() netip.AddrPort { return l.s.path.at }

// HungUp says that there is no connection, since the other side's host closed the last one.
func (l Locked) HungUp() bool { return !l.Connected() && dropped(l.s.path.broken) }

// Heard says that there is a connection, and that something came after that time.
func (l Locked) Heard(after time.Time) bool {
	return l.Connected() && l.s.live.LastHeard().After(after)
}

// Moved counts the frames that have got through, in both directions.
func (l Locked) Moved() uint64 { return l.s.resume.got + l.s.queue.acked() }

// Reached notes that an address of the peer has accepted a connection.
func (l Locked) Reached() { l.s.signs.reached = time.Now() }

// Commit gives up the connection in use, for an address that has answered: nothing more is taken in from it, so that the count in r is
// final. It fills in what the stream knows of the Resume.
func (l Locked) Commit(r *wire.Resume) {
	s := l.s
	if s.path.conn != nil {
		s.unplug(errUneasy)
	}
	s.resume.try++
	r.Proof, r.Try, r.Got = s.resume.proof, s.resume.try, s.resume.got
}

// Refuses says why a Resume can't be answered; code 0: it can.
func (l Locked) Refuses(r *wire.Resume) (code wire.Code, text string) {
	s := l.s
	switch {
	case s.state.Over():
		return wire.CodeSession, "the session has ended"
	case s.state != Ready:
		return wire.CodeBusy, "the session is just beginning"
	case !r.Proof.Equal(s.resume.proof):
		return wire.CodeToken, "not the session's initiator"
	case r.Try <= s.resume.try:
		return wire.CodeBusy, "overtaken by a later resume"
	case !s.queue.resumable(r.Got):
		return wire.CodeSession, "the session can't have got so many frames"
	}
	return 0, ""
}

// Got is how many frames were taken in: the answer to a Resume that is not refused.
func (l Locked) Got() uint64 { return l.s.resume.got }

// Replace goes on with the connection of a Resume that is not refused, in place of the one in use.
func (l Locked) Replace(c *Conn, r *wire.Resume) {
	if l.s.path.conn != nil {
		l.s.unplug(errReplaced)
	}
	l.s.resume.try = r.Try
	l.Resume(c, r.Got)
}

// Resume goes on with a connection whose other side has taken in got frames; false, and nothing is done, when that can't be. There is no
// connection.
func (l Locked) Resume(c *Conn, got uint64) bool {
	resent, ok := l.s.queue.rewind(got)
	if !ok {
		return false
	}
	l.s.install(c)
	l.s.env.Count.Resumed.Add(1)
	l.s.env.Count.Resent.Add(resent)
	return true
}

// Why is why there is no connection, or what is wrong with the one there is, as an error that ends the stream.
func (l Locked) Why() error {
	if l.Connected() {
		return l.s.Explain(errUneasy)
	}
	return l.s.Explain(l.s.path.broken)
}

// End is Stream.End without a goodbye.
func (l Locked) End(to State, cause error) { l.s.end(to, cause, nil) }

// LogResumed tells of a new connection. It is called without locks: a log may be slow.
func (s *Stream) LogResumed(c net.Conn) {
	s.env.Log.Info("control session resumed", "peer", s.peer, "local", c.LocalAddr().String(), "remote", c.RemoteAddr().String())
}
