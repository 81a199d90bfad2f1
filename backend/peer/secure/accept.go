package secure

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"

	"gorail/backend/peer/stream"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

// Opening is a connection that a target has challenged.
type Opening struct {
	conn      net.Conn
	challenge wire.Challenge
}

// Challenge sends a target's first frame. The caller has set a deadline.
func Challenge(c net.Conn) (*Opening, error) {
	o := &Opening{conn: c, challenge: wire.Challenge{Version: wire.Version}}
	_, _ = rand.Read(o.challenge.Nonce[:]) // never fails
	return o, wire.WriteFrame(c, &o.challenge)
}

// ReadOpen reads the initiator's answer and checks it. why is the Reject for a wrong answer.
func (o *Opening) ReadOpen(own *wire.ConnBlob) (why *wire.Reject, err error) {
	f, err := wire.ReadFrame(o.conn, openLimit)
	if err != nil {
		return nil, err
	}
	open, ok := f.(*wire.Open)
	if !ok {
		return nil, fmt.Errorf("%w: %v instead of an open", stream.ErrProtocol, f.Type())
	}
	switch {
	case open.Version != wire.Version:
		return &wire.Reject{Code: wire.CodeVersion, Text: fmt.Sprintf("the initiator has control protocol %d, the target %d: install the same GORAIL on both sides", open.Version, wire.Version)}, nil
	case open.Target != own.Engine:
		return &wire.Reject{Code: wire.CodeEngine, Text: "not this engine: the peer was restarted; load its new metadata"}, nil
	case !open.Mac.Equal(trust.OpenMac(own.Token, o.challenge.Nonce, own.Engine)):
		return &wire.Reject{Code: wire.CodeToken, Text: "wrong token: load the peer's metadata again"}, nil
	}
	return nil, nil
}

// Accept is the target's side after a correct Open. The caller has set a deadline, and closes the connection after an
// error.
func (o *Opening) Accept(own *wire.ConnBlob, key *trust.Key) (*Conn, error) {
	if !own.TLS {
		return &Conn{Conn: o.conn, Bind: trust.BindPlain(own.Token, o.challenge.Nonce, own.Engine)}, nil
	}
	s := &Conn{Conn: o.conn, Ends: trust.Ends{Target: own.Pin}, raw: newBelow(o.conn)}
	s.tls = tls.Server(s.raw, key.Server())
	return s, s.handshake(o.challenge.Nonce)
}
