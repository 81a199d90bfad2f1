package peer

import (
	"errors"
	"net/netip"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// resume gives a connection to the session that its Resume names. On an error the other side has got a Reject.
func (a *acceptor) resume(c *SecureConn, r *wire.Resume) error {
	in := a.sessions.find(sessionKey{r.Engine, r.Session})
	why := &RejectError{Code: wire.CodeSession, Text: "no such session: the session has ended"}
	if in != nil {
		proved, own, err := a.identities(c, &r.Identity, in.agent)
		if why = nil; err != nil {
			why = refusal(err)
		} else {
			in.stream.Do(func(l lockedStream) { why = a.replace(l, c, r, own) })
		}
		if why == nil {
			a.renewals.proved(in.renewal, proved)
			in.stream.LogResumed(c)
			return nil
		}
	}
	a.count.badResume.Add(1)
	if why.Code == wire.CodeSession && a.env.Gone.Load() { // the initiator may have given up the connection that has our Bye
		why = &RejectError{Code: wire.CodeGone, Text: "the engine has ended"}
	}
	reject(c, why)
	return why
}

// replace replaces a session's connection. It returns nil on success. It does not wait for the reader or the writer.
func (a *acceptor) replace(l lockedStream, c *SecureConn, r *wire.Resume, own wire.Identity) *RejectError {
	if code, text := l.Refuses(r, c.Bind); code != 0 {
		return &RejectError{Code: code, Text: text}
	}
	answer := l.Resumed(c.Bind)
	answer.Identity = own
	first, err := wire.AppendFrame(nil, answer)
	if err != nil {
		return rejection(err)
	}
	l.Replace(newStreamConn(c, netip.AddrPort{}, first), r)
	return nil
}

// identities checks an initiator's identity, and makes ours in answer to it.
func (a *acceptor) identities(c *SecureConn, id *wire.Identity, agent string) (proved trust.Peer, own wire.Identity, err error) {
	if proved, err = a.check(trust.Initiator, c, id, agent); err != nil {
		return proved, own, err
	}
	if own, err = a.proveSelf(trust.Target, c, id); err != nil {
		a.cfg.Log.Warn("peer refused as busy; the peer tries again", "peer", clipText(agent), "error", err)
		err = &RejectError{Code: wire.CodeBusy, Text: "the target cannot prove its own identity now: its log says why"}
	}
	return proved, own, err
}

// refusal returns the Reject for an error of identities.
func refusal(err error) *RejectError {
	var r *RejectError
	if errors.As(err, &r) {
		return r
	}
	return &RejectError{Code: wire.CodeIdentity, Text: err.Error()}
}
