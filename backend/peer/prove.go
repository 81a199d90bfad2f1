package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"gorail/backend/limits"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

// prove makes a connection prove that it has our token, and returns it with its Hello or Resume. On an error prove has
// counted the failure, sent a Reject if one is due, and closed the connection.
func (a *acceptor) prove(p *pendingHandshake) (wire.Frame, *SecureConn, error) {
	stop := context.AfterFunc(a.env.Ctx, func() { p.Conn.Close() }) // the node closes
	defer stop()
	o, shown, err := a.open(p)
	if err != nil {
		p.Conn.Close()
		return nil, nil, err
	}
	f, c, err := a.authenticate(o, shown)
	switch {
	case !a.shown.Leave(shown):
		err = errEvicted
	case err != nil && c == nil:
		a.count.badTLS.Add(1)
	case err != nil:
		a.count.badFrame.Add(1)
	default:
		if err = a.verify(f, c); err != nil {
			a.refuse(c, err)
		}
	}
	if err != nil {
		p.Conn.Close()
		return nil, nil, err
	}
	return f, c, nil
}

var errEvicted = errors.New("evicted for another handshake") // counted by the one that took the place

// open takes a connection through the Open. It then has a place among those that have shown the token.
func (a *acceptor) open(p *pendingHandshake) (o *opening, shown *pendingHandshake, err error) {
	_ = p.Conn.SetDeadline(time.Now().Add(a.cfg.reach()))
	o, err = Challenge(p.Conn)
	var why *wire.Reject
	if err == nil {
		why, err = o.ReadOpen(&a.cfg.Identity)
	}
	if err == nil && why == nil {
		var evicted *pendingHandshake
		if shown, evicted = a.shown.Pass(a.env.Ctx, p); evicted != nil { //limit:handshakes_waiting
			a.cfg.Limits.Hit(limits.WaitingHandshakes)
		}
	}
	switch {
	case !a.limiter.Leave(p):
		err = errEvicted
	case a.env.Ctx.Err() != nil:
		err = ErrClosed
	default:
		err = a.blame(p, why, err)
	}
	if err != nil && shown != nil {
		a.shown.Leave(shown)
	}
	return o, shown, err
}

// authenticate takes a connection through TLS, and reads the frame after it. Meanwhile the connection may be evicted. It
// has its turn only while the target works for it: a connection that stays silent costs others no turn. c is nil after
// an error of TLS.
func (a *acceptor) authenticate(o *opening, p *pendingHandshake) (f wire.Frame, c *SecureConn, err error) {
	_ = p.Conn.SetDeadline(time.Now().Add(a.cfg.proof()))
	if err = o.ReadFirst(); err == nil {
		c, err = a.secure(o, p)
	}
	if err != nil {
		return nil, nil, err
	}
	f, err = readHello(c)
	return f, c, err
}

// secure does the handshake of TLS, in its turn.
func (a *acceptor) secure(o *opening, p *pendingHandshake) (*SecureConn, error) {
	endTurn, ok := a.turns.Take(p.Context, p.Source)
	if !ok {
		return nil, errEvicted
	}
	endTurn = sync.OnceFunc(endTurn)
	defer endTurn()
	if closedByPeer(p.Conn) { // it has tried again meanwhile
		return nil, io.EOF
	}
	_ = p.Conn.SetDeadline(time.Now().Add(a.cfg.proof()))
	return o.Accept(&a.cfg.Identity, a.cfg.Key, endTurn)
}

// blame counts a failed Open, against its source unless honest peers fail that way too, and sends the Reject.
func (a *acceptor) blame(p *pendingHandshake, why *wire.Reject, err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		a.count.timedOut.Add(1)
		a.limiter.Fail(p.Source, time.Now())
		return err
	case err != nil:
		a.count.badFrame.Add(1)
		if !hungUp(err) { // an initiator that resumes over several paths hangs up on all but one
			a.limiter.Fail(p.Source, time.Now())
		}
		return err
	case why == nil:
		return nil
	case why.Code == wire.CodeVersion:
		a.count.badVersion.Add(1)
	case why.Code == wire.CodeEngine:
		a.count.wrongEngine.Add(1)
	default:
		a.count.badToken.Add(1)
		a.limiter.Fail(p.Source, time.Now())
	}
	r := &RejectError{Code: why.Code, Text: why.Text}
	reject(p.Conn, r)
	return r
}

// readHello reads the frame that follows the handshake of TLS.
func readHello(c *SecureConn) (wire.Frame, error) {
	f, err := wire.ReadFrame(c, wire.HandshakeLimit)
	if err != nil {
		return nil, err
	}
	switch f.(type) {
	case *wire.Hello, *wire.Resume:
		return f, nil
	}
	return nil, fmt.Errorf("%w: %v instead of a hello", ErrProtocol, f.Type())
}

// verify checks the claims of a Hello or a Resume: it was made for this connection, by the engine that it names. The
// session checks the MAC of a Resume.
func (a *acceptor) verify(f wire.Frame, c *SecureConn) error {
	engine := wire.EngineID{}
	switch f := f.(type) {
	case *wire.Hello:
		engine = f.Engine
		if !f.Mac.Equal(trust.HelloMac(a.cfg.Identity.Token, c.Bind)) {
			a.count.badToken.Add(1)
			return &RejectError{Code: wire.CodeToken, Text: "the hello was made for another connection"}
		}
	case *wire.Resume:
		engine = f.Engine
	}
	if !c.Proves(engine) {
		a.count.badToken.Add(1)
		return &RejectError{Code: wire.CodeToken, Text: "the hello names another engine than the one whose key it shows"}
	}
	return nil
}

// refuse sends a Reject for an error of a Hello, if the connection still works.
func (a *acceptor) refuse(c *SecureConn, err error) {
	var why *RejectError
	if errors.As(err, &why) {
		reject(c, why)
		return
	}
	a.count.badFrame.Add(1)
}

// rejection returns the error to send to a refused initiator.
func rejection(err error) *RejectError {
	var r *RejectError
	if errors.As(err, &r) {
		return r
	}
	return &RejectError{Code: wire.CodeInternal, Text: err.Error()}
}

// reject sends a Reject, waiting at most Linger.
func reject(c net.Conn, r *RejectError) {
	_ = c.SetDeadline(time.Now().Add(linger))
	_ = wire.WriteFrame(c, &wire.Reject{Code: r.Code, Text: clipText(r.Text)})
}
