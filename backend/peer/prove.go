package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"gorail/backend/peer/limiter"
	"gorail/backend/peer/liveness"
	"gorail/backend/peer/secure"
	"gorail/backend/peer/stream"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

// inTurn is the time for TLS and the first frame together, once a connection has its turn. An initiator gives a Resume
// less, and tries again: dead connections must not keep others out.
const inTurn = time.Second

// prove makes a connection prove that it has our token, and returns it with its Hello or Resume. On an error prove has
// counted the failure, sent a Reject if one is due, and closed the connection.
func (a *acceptor) prove(p *limiter.Pending) (wire.Frame, *secure.Conn, error) {
	stop := context.AfterFunc(a.env.Ctx, func() { p.Conn.Close() }) // the node closes
	defer stop()
	c, endTurn, err := a.secure(p)
	defer endTurn() // a connection that says nothing after TLS keeps its place
	if err != nil {
		p.Conn.Close()
		return nil, nil, err
	}
	f, err := readHello(c)
	if err == nil {
		err = a.verify(f, c)
	}
	if err != nil {
		a.refuse(c, err)
		c.Close()
		return nil, nil, err
	}
	return f, c, nil
}

// secure takes a connection through the Open and TLS. Until its turn for TLS comes, the connection may be evicted. The
// caller ends the turn, also after an error.
func (a *acceptor) secure(p *limiter.Pending) (c *secure.Conn, endTurn func(), err error) {
	_ = p.Conn.SetDeadline(time.Now().Add(a.cfg.reach()))
	o, err := secure.Challenge(p.Conn)
	var why *wire.Reject
	if err == nil {
		why, err = o.ReadOpen(&a.cfg.Identity)
	}
	endTurn = func() {}
	if err == nil && why == nil {
		if end, ok := a.turns.Take(p.Context, p.Source); ok {
			endTurn = end
		}
	}
	if !a.limiter.Leave(p) {
		return nil, endTurn, errors.New("evicted for another handshake") // counted by admit
	}
	if a.env.Ctx.Err() != nil {
		return nil, endTurn, ErrClosed
	}
	if err = a.blame(p, why, err); err != nil {
		return nil, endTurn, err
	}
	if liveness.ClosedByPeer(p.Conn) { // it has tried again meanwhile
		return nil, endTurn, io.EOF
	}
	_ = p.Conn.SetDeadline(time.Now().Add(inTurn))
	if c, err = o.Accept(&a.cfg.Identity, a.cfg.Key); err != nil {
		a.count.badTLS.Add(1)
	}
	return c, endTurn, err
}

// blame counts a failed Open, against its source unless honest peers fail that way too, and sends the Reject.
func (a *acceptor) blame(p *limiter.Pending, why *wire.Reject, err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		a.count.timedOut.Add(1)
		a.limiter.Fail(p.Source, time.Now())
		return err
	case err != nil:
		a.count.badFrame.Add(1)
		if !stream.HungUp(err) { // an initiator that resumes over several paths hangs up on all but one
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
func readHello(c *secure.Conn) (wire.Frame, error) {
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
func (a *acceptor) verify(f wire.Frame, c *secure.Conn) error {
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
func (a *acceptor) refuse(c *secure.Conn, err error) {
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
	_ = c.SetDeadline(time.Now().Add(stream.Linger))
	_ = wire.WriteFrame(c, &wire.Reject{Code: r.Code, Text: stream.Clip(r.Text)})
}
