// How a connection of the control channel is authenticated, before there is a session:
//
//	initiator                               target
//	             <------------ Challenge (version, nonce)
//	    Open (version, target, MAC) -------->
//	             <------------ nothing, or Reject in clear: a hint
//	    TLS 1.3, a key of each engine <----->
//	    Hello or Resume -------------------->
//	             <------------ Welcome, Resumed or Reject
//
// The MAC costs the target 0.6 us, and a TLS handshake 0.2 to 0.4 ms. So nobody without the token causes a TLS
// handshake.

package peer

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// openLimit bounds the body of a Challenge, an Open or a Reject in clear, in bytes.
const openLimit = 2 * wire.MaxText

// refused is the error of Connect after a Reject in clear. Anybody may have sent it.
type refused struct{ Reject *wire.Reject }

// Error implements error.
func (r *refused) Error() string { return r.Reject.Text }

// SecureConn is an authenticated connection. Reads and writes go through TLS. Everything else, above all Close, is done to the
// connection below: tls.Conn.Close waits up to 5 s for a peer that does not read.
type SecureConn struct {
	net.Conn
	tls  *tls.Conn
	raw  *below        // what tls reads from and writes to
	Bind trust.Binding // of this connection
	Ends trust.Ends
}

// mostWritten is the size of a record, in bytes. A connection keeps a buffer for the largest record that it has received.
const mostWritten = 4 << 10

// Read implements net.Conn.
func (c *SecureConn) Read(p []byte) (n int, err error) {
	defer recovered(&err)
	defer c.raw.rest()
	return c.tls.Read(p)
}

// below is the connection below TLS. A TLS reader may answer a record (an alert, a new key). Then it waits for the Write in
// progress, which may wait for a peer that does not read. The Write then fails and ends the connection.
type below struct {
	net.Conn
	shaken  bool        // the handshake is over. In a handshake one goroutine reads and writes, and its deadline bounds both
	busy    *time.Timer // runs while TLS works on what it has read
	working atomic.Bool // the same
	writing atomic.Int32
}

// busyMost is the time that TLS may work on a record while a Write is in progress. It takes microseconds. Without a Write nothing
// blocks it: then this process lacks CPU time.
const busyMost = 2 * time.Second

func newBelow(c net.Conn) *below {
	b := &below{Conn: c}
	b.busy = time.AfterFunc(time.Hour, b.late)
	b.busy.Stop()
	return b
}

// late ends a Write that blocks TLS, or looks again later.
func (b *below) late() {
	switch {
	case !b.working.Load():
	case b.writing.Load() > 0:
		_ = b.SetWriteDeadline(time.Now())
	default:
		b.busy.Reset(busyMost)
	}
}

// rest says that TLS works on nothing.
func (b *below) rest() {
	b.working.Store(false)
	b.busy.Stop()
}

// Read implements net.Conn.
func (b *below) Read(p []byte) (int, error) {
	b.rest()
	n, err := b.Conn.Read(p)
	if n > 0 && b.shaken {
		b.working.Store(true)
		b.busy.Reset(busyMost)
	}
	return n, err
}

// Write implements net.Conn.
func (b *below) Write(p []byte) (int, error) {
	b.writing.Add(1)
	defer b.writing.Add(-1)
	return b.Conn.Write(p)
}

// Write implements net.Conn. A Write that fails, also by its deadline, ends the connection.
func (c *SecureConn) Write(p []byte) (n int, err error) {
	defer recovered(&err)
	for len(p) > 0 && err == nil {
		var m int
		m, err = c.tls.Write(p[:min(len(p), mostWritten)])
		n, p = n+m, p[m:]
	}
	return n, err
}

// NetConn returns the connection below TLS.
func (c *SecureConn) NetConn() net.Conn { return c.Conn }

// CloseWrite ends our direction of the connection, without a word of TLS: a Bye came before it.
func (c *SecureConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Proves reports whether the other end has proved that it is this engine.
func (c *SecureConn) Proves(initiator wire.EngineID) bool {
	return c.Ends.Initiator.Engine() == initiator
}

// ReadChallenge reads the first frame of a target.
func ReadChallenge(c net.Conn) (*wire.Challenge, error) {
	f, err := wire.ReadFrame(c, openLimit)
	if err != nil {
		return nil, err
	}
	challenge, ok := f.(*wire.Challenge)
	if !ok {
		return nil, fmt.Errorf("%w: %v instead of a challenge", ErrProtocol, f.Type())
	}
	if challenge.Version != wire.Version {
		return nil, fmt.Errorf("%w: the peer has control protocol %d, this side %d", wire.ErrVersion, challenge.Version, wire.Version)
	}
	return challenge, nil
}

// Connect is the initiator's side after the Challenge. The caller has set a deadline, and closes c after an error. An
// error wraps ErrProtocol, is a *Refused, or is one of the connection.
func Connect(c net.Conn, challenge *wire.Challenge, to *wire.ConnBlob, key *trust.Key) (*SecureConn, error) {
	open := &wire.Open{Version: wire.Version, Target: to.Engine, Mac: trust.OpenMac(to.Token, challenge.Nonce, to.Engine)}
	if err := wire.WriteFrame(c, open); err != nil {
		return nil, err
	}
	s := &SecureConn{Conn: c, Ends: trust.Ends{Initiator: key.Pin, Target: to.Pin}, raw: newBelow(&answer{Conn: c})}
	s.tls = tls.Client(s.raw, key.Client(to.Pin))
	return s, s.handshake(challenge.Nonce)
}

// handshake does the handshake of TLS.
func (c *SecureConn) handshake(challenge wire.Nonce) (err error) {
	defer recovered(&err)
	defer c.raw.rest()
	if err = c.tls.Handshake(); err != nil {
		return explain(err)
	}
	state := c.tls.ConnectionState()
	if c.Ends.Initiator == (wire.Pin{}) { // a target learns it here
		if c.Ends.Initiator, err = trust.PeerPin(&state); err != nil {
			return explain(err)
		}
	}
	c.Bind, err = trust.Bind(&state, c.Ends, challenge)
	c.raw.shaken = true
	return err
}

// recovered turns a panic in TLS into an error: it would end the host process.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: panic in TLS: %v", ErrProtocol, p)
	}
}

// explain keeps errors of the connection, and marks those of TLS.
func explain(err error) error {
	var timeout net.Error
	var op *net.OpError
	var refused *refused
	switch {
	case errors.As(err, &refused):
		return refused
	case errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"): // an alert of TLS
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &timeout):
		return err
	}
	return fmt.Errorf("%w: TLS: %w", ErrProtocol, err)
}

// answer reads a target's answer to an Open: its first record of TLS, or a Reject in clear. A frame begins with a zero
// byte, and a record does not.
type answer struct {
	net.Conn
	begun bool
}

// Read implements net.Conn.
func (a *answer) Read(p []byte) (int, error) {
	if a.begun || len(p) == 0 {
		return a.Conn.Read(p)
	}
	n, err := a.Conn.Read(p[:1])
	if n == 0 {
		return n, err
	}
	a.begun = true
	if p[0] != 0 {
		return n, err
	}
	f, err := wire.ReadFrame(io.MultiReader(bytes.NewReader(p[:1:1]), a.Conn), openLimit)
	if r, ok := f.(*wire.Reject); ok && err == nil {
		return 0, &refused{r}
	}
	return 0, fmt.Errorf("%w: neither TLS nor a reject", ErrProtocol)
}
