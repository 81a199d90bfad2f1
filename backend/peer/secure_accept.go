package peer

import (
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// opening is a connection that a target has challenged.
type opening struct {
	conn      net.Conn
	challenge wire.Challenge
	first     []byte // the first record of TLS, with the ClientHello
}

// Challenge sends a target's first frame. The caller has set a deadline.
func Challenge(c net.Conn) (*opening, error) {
	o := &opening{conn: c, challenge: wire.Challenge{Version: wire.Version}}
	_, _ = rand.Read(o.challenge.Nonce[:]) // never fails
	return o, wire.WriteFrame(c, &o.challenge)
}

// ReadOpen reads the initiator's answer and checks it. why is the Reject for a wrong answer.
func (o *opening) ReadOpen(own *wire.ConnBlob) (why *wire.Reject, err error) {
	f, err := wire.ReadFrame(o.conn, openLimit)
	if err != nil {
		return nil, err
	}
	open, ok := f.(*wire.Open)
	if !ok {
		return nil, fmt.Errorf("%w: %v instead of an open", ErrProtocol, f.Type())
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

// mostFirst bounds the first record of TLS, in bytes. Ours has 300.
const mostFirst = 4 << 10

// ReadFirst reads what the initiator sends right after its Open: the first record of TLS. The caller has set a deadline.
func (o *opening) ReadFirst() error {
	var head [5]byte // type, version, length
	if _, err := io.ReadFull(o.conn, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint16(head[3:])
	if n > mostFirst {
		return fmt.Errorf("%w: a first record of %d bytes, at most %d", ErrProtocol, n, mostFirst)
	}
	o.first = append(head[:], make([]byte, n)...)
	_, err := io.ReadFull(o.conn, o.first[len(head):])
	return err
}

// beganWith is a connection. Its first record has been read already.
type beganWith struct {
	net.Conn
	first []byte
	waits func() // called once, before the first Read that waits for the initiator
}

// Read implements net.Conn.
func (b *beganWith) Read(p []byte) (int, error) {
	if len(b.first) > 0 {
		n := copy(p, b.first)
		b.first = b.first[n:]
		return n, nil
	}
	if b.waits != nil {
		b.waits()
		b.first, b.waits = nil, nil
	}
	return b.Conn.Read(p)
}

// Accept is the target's side after ReadFirst. The caller has set a deadline, and closes the connection after an error.
// waits is called when the costly part is over, and Accept waits for the initiator. It may not be called.
func (o *opening) Accept(own *wire.ConnBlob, key *trust.Key, waits func()) (*SecureConn, error) {
	s := &SecureConn{Conn: o.conn, Ends: trust.Ends{Target: own.Pin}, raw: newBelow(&beganWith{o.conn, o.first, waits})}
	s.tls = tls.Server(s.raw, key.Server())
	return s, s.handshake(o.challenge.Nonce)
}
