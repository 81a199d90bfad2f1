package peer

import (
	"net"
	"net/netip"

	"gorail/backend/peer/stream"
	"gorail/backend/wire"
)

// resume gives an authenticated connection to the session that its Resume names. On an error the other side has got a
// Reject.
func (a *acceptor) resume(c net.Conn, r *wire.Resume, challenge *wire.Challenge) error {
	in := a.sessions.find(sessionKey{r.Engine, r.Session})
	why := &RejectError{Code: wire.CodeSession, Text: "no such session: the session has ended"}
	if in != nil {
		in.stream.Do(func(l stream.Locked) { why = a.replace(l, c, r, challenge) })
	}
	if why == nil {
		in.stream.LogResumed(c)
		return nil
	}
	a.count.badResume.Add(1)
	reject(c, why, a.sign(challenge, r.Nonce))
	return why
}

// replace replaces a session's connection. It returns nil on success. It does not wait for the reader or the writer.
func (a *acceptor) replace(l stream.Locked, c net.Conn, r *wire.Resume, challenge *wire.Challenge) *RejectError {
	if code, text := l.Refuses(r); code != 0 {
		return &RejectError{Code: code, Text: text}
	}
	id := &a.cfg.Identity
	answer := &wire.Resumed{Version: wire.Version, Engine: id.Engine, Session: r.Session, Got: l.Got()}
	mac, err := wire.MacResumed(id.Token, challenge.Nonce, r.Nonce, answer)
	var first []byte
	if answer.Mac = mac; err == nil {
		first, err = wire.AppendFrame(nil, answer)
	}
	if err != nil {
		return rejection(err)
	}
	l.Replace(stream.NewConn(c, netip.AddrPort{}, first), r)
	return nil
}
