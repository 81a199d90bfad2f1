package peer

import (
	"net"
	"net/netip"

	"gorail/backend/wire"
)

// sessionKey is how an initiator names its session.
type sessionKey struct {
	engine  wire.EngineID
	session uint64
}

// enlist makes a session one that can be resumed.
func (n *Node) enlist(in *In) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.served[sessionKey{in.engine, in.id}] = in
}

func (n *Node) dismiss(in *In) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if key := (sessionKey{in.engine, in.id}); n.served[key] == in {
		delete(n.served, key)
	}
}

// resume gives a connection that has proved itself to the session that it asks for. An error was told to the other side.
func (n *Node) resume(c net.Conn, r *wire.Resume, challenge *wire.Challenge) error {
	n.mu.Lock()
	in := n.served[sessionKey{r.Engine, r.Session}]
	n.mu.Unlock()
	why := &RejectError{Code: wire.CodeSession, Text: "no such session: it has ended"}
	if in != nil {
		why = in.resume(c, r, challenge)
	}
	if why == nil {
		in.session.logResumed(c)
		return nil
	}
	n.count.badResume.Add(1)
	n.reject(c, why, n.sign(challenge, r.Nonce))
	return why
}

// resume replaces the session's line; nil when all is well. It doesn't wait for the reader or the writer.
func (in *In) resume(c net.Conn, r *wire.Resume, challenge *wire.Challenge) *RejectError {
	s, id := in.session, &in.session.node.cfg.Identity
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.state.over():
		return &RejectError{Code: wire.CodeSession, Text: "the session has ended"}
	case s.state != Ready:
		return &RejectError{Code: wire.CodeBusy, Text: "the session is just beginning"}
	case !r.Proof.Equal(s.proof):
		return &RejectError{Code: wire.CodeToken, Text: "not the session's initiator"}
	case r.Try <= s.try:
		return &RejectError{Code: wire.CodeBusy, Text: "overtaken by a later resume"}
	case !s.queue.resumable(r.Got):
		return &RejectError{Code: wire.CodeSession, Text: "the session can't have got so many frames"}
	}
	answer := &wire.Resumed{Version: wire.Version, Engine: id.Engine, Session: r.Session, Got: s.got}
	mac, err := wire.MacResumed(id.Token, challenge.Nonce, r.Nonce, answer)
	l := newLine(c, netip.AddrPort{})
	if answer.Mac = mac; err == nil {
		l.first, err = wire.AppendFrame(nil, answer)
	}
	if err != nil {
		return rejection(err)
	}
	if s.line != nil {
		s.unplug(errReplaced)
	}
	s.try = r.Try
	s.adopt(l, r.Got)
	return nil
}

// adopt goes on with a line whose other side has taken in got frames; false, and nothing is done, when that can't be. With
// mu held, while there is no line.
func (s *session) adopt(l *line, got uint64) bool {
	resent, ok := s.queue.rewind(got)
	if !ok {
		return false
	}
	s.install(l)
	s.node.count.resumed.Add(1)
	s.node.count.resent.Add(resent)
	return true
}

// logResumed is called without locks: a log may be slow.
func (s *session) logResumed(c net.Conn) {
	s.node.cfg.Log.Info("control session resumed", "peer", s.peer, "local", c.LocalAddr().String(), "remote", c.RemoteAddr().String())
}
