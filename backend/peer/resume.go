package peer

import (
	"net/netip"

	"gorail/backend/peer/secure"
	"gorail/backend/peer/stream"
	"gorail/backend/wire"
)

// resume gives a connection to the session that its Resume names. On an error the other side has got a Reject.
func (a *acceptor) resume(c *secure.Conn, r *wire.Resume) error {
	in := a.sessions.find(sessionKey{r.Engine, r.Session})
	why := &RejectError{Code: wire.CodeSession, Text: "no such session: the session has ended"}
	if in != nil {
		in.stream.Do(func(l stream.Locked) { why = a.replace(l, c, r) })
	}
	if why == nil {
		in.stream.LogResumed(c)
		return nil
	}
	a.count.badResume.Add(1)
	reject(c, why)
	return why
}

// replace replaces a session's connection. It returns nil on success. It does not wait for the reader or the writer.
func (a *acceptor) replace(l stream.Locked, c *secure.Conn, r *wire.Resume) *RejectError {
	if code, text := l.Refuses(r, c.Bind); code != 0 {
		return &RejectError{Code: code, Text: text}
	}
	first, err := wire.AppendFrame(nil, l.Resumed(c.Bind))
	if err != nil {
		return rejection(err)
	}
	l.Replace(stream.NewConn(c, netip.AddrPort{}, first), r)
	return nil
}
