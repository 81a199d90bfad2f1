package peer

import (
	"net"
	"net/netip"
	"time"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// lockedStream is a stream under its lock, for a decision and its effect in one step. It is valid only within Do. The
// callback must not call other methods of the stream.
type lockedStream struct{ s *stream }

// Do calls f with the stream's lock held. f must not wait.
func (s *stream) Do(f func(l lockedStream)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(lockedStream{s})
}

// State returns the stream's state.
func (l lockedStream) State() State { return l.s.state }

// Connected reports whether the stream has a connection.
func (l lockedStream) Connected() bool { return l.s.path.conn != nil }

// At returns the address that the last connection leads to.
func (l lockedStream) At() netip.AddrPort { return l.s.path.at }

// HungUp reports that there is no connection because the other side's host closed the last one.
func (l lockedStream) HungUp() bool { return !l.Connected() && dropped(l.s.path.broken) }

// Heard reports that there is a connection, and that data came later than after.
func (l lockedStream) Heard(after time.Time) bool {
	return l.Connected() && l.s.live.LastHeard().After(after)
}

// Progress returns the number of frames that have been received or acknowledged, in both directions together.
func (l lockedStream) Progress() uint64 { return l.s.resume.got + l.s.queue.acked() }

// Reached records that an address of the peer has accepted a connection.
func (l lockedStream) Reached() { l.s.signs.reached = time.Now() }

// Commit gives up the connection in use, in favour of the connection x, whose other end is the peer. Nothing more is
// received over the old one, so the count in r is final. Commit sets r.Mac, r.Try and r.Got.
func (l lockedStream) Commit(r *wire.Resume, x trust.Binding) {
	s := l.s
	if s.path.conn != nil {
		s.park(s.detach(errSuspected))
	}
	s.resume.try++
	r.Try, r.Got = s.resume.try, s.resume.got
	r.Mac = s.resume.secret.ResumeMac(x, r.Session, r.Try, r.Got)
}

// Park keeps the connection of a Commit open, which is given up: the other side may have it by now.
func (l lockedStream) Park(c net.Conn) { l.s.park(c) }

// peerHungUp records that the peer closed the connection of the last Commit without an answer.
func (l lockedStream) peerHungUp() {
	if !l.Connected() && !l.s.state.Over() {
		l.s.path.broken = errNoAnswer
	}
}

// peerLives forgets peerHungUp: the peer was only busy then.
func (l lockedStream) peerLives() {
	if l.s.path.broken == errNoAnswer {
		l.s.path.broken = errSuspected
	}
}

// Resumed returns the answer to an acceptable Resume on the connection x.
func (l lockedStream) Resumed(x trust.Binding) *wire.Resumed {
	r := &l.s.resume
	return &wire.Resumed{Mac: r.secret.ResumedMac(x, r.got), Got: r.got}
}

// Answers reports whether an answer to a Resume on the connection x comes from the target of the session, which is not
// over.
func (l lockedStream) Answers(f *wire.Resumed, x trust.Binding) bool {
	return !l.s.state.Over() && f.Mac.Equal(l.s.resume.secret.ResumedMac(x, f.Got))
}

// Refuses returns the reason to refuse a Resume on the connection x; code 0: the Resume is acceptable.
func (l lockedStream) Refuses(r *wire.Resume, x trust.Binding) (code wire.Code, text string) {
	s := l.s
	switch {
	case s.state.Over():
		return wire.CodeSession, "the session has ended"
	case s.state != Ready:
		return wire.CodeBusy, "the session is still starting"
	case !r.Mac.Equal(s.resume.secret.ResumeMac(x, r.Session, r.Try, r.Got)):
		return wire.CodeToken, "the resume does not come from the initiator of the session"
	case r.Try <= s.resume.try:
		return wire.CodeBusy, "outdated: a later resume came first"
	case !s.queue.resumable(r.Got):
		return wire.CodeSession, "the resume acknowledges an impossible number of frames"
	}
	return 0, ""
}

// Replace continues the stream on the connection of an acceptable Resume, in place of the connection in use.
func (l lockedStream) Replace(c *streamConn, r *wire.Resume) {
	if l.s.path.conn != nil {
		l.s.disconnect(errReplaced)
	}
	l.s.resume.try = r.Try
	l.Resume(c, r.Got)
}

// Resume continues the stream on a connection whose other side has received got frames. It returns false and does
// nothing if that number is impossible. The stream must have no connection.
func (l lockedStream) Resume(c *streamConn, got uint64) bool {
	resent, ok := l.s.queue.rewind(got)
	if !ok {
		return false
	}
	l.s.install(c)
	l.s.env.Count.Resumed.Add(1)
	l.s.env.Count.Resent.Add(resent)
	return true
}

// Why returns the error that ends the stream: why there is no connection, or what is wrong with the current one.
func (l lockedStream) Why() error {
	if l.Connected() {
		return l.s.Explain(errSuspected)
	}
	return l.s.Explain(l.s.path.broken)
}

// End is stream.End without a Bye.
func (l lockedStream) End(to State, cause error) { l.s.end(to, cause, nil) }

// LogResumed logs a new connection. It is called without locks, because logging may be slow.
func (s *stream) LogResumed(c net.Conn) {
	s.env.Log.Info("control session resumed", "peer", s.peer, "local", c.LocalAddr().String(), "remote", c.RemoteAddr().String())
}
