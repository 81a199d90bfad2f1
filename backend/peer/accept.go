package peer

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"gorail/backend/wire"
)

const (
	acceptBackoff    = 5 * time.Millisecond // after a failed accept, doubled up to
	acceptBackoffMax = time.Second
	acceptToldAgain  = time.Minute
)

// accept takes connections until the node closes. When accept fails (no descriptors left), it backs off.
func (n *Node) accept(l net.Listener) {
	backoff := acceptBackoff
	var told time.Time
	for {
		c, err := l.Accept()
		if n.ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil {
			n.count.acceptErrors.Add(1)
			if told.IsZero() || time.Since(told) > acceptToldAgain {
				told = time.Now()
				n.cfg.Log.Warn("control channel cannot accept: raise the limit of open files with ulimit -n", "address", l.Addr().String(), "error", err)
			}
			timer := time.NewTimer(backoff)
			select {
			case <-timer.C:
			case <-n.ctx.Done():
			}
			timer.Stop()
			backoff = min(2*backoff, acceptBackoffMax)
			continue
		}
		backoff = acceptBackoff
		n.admit(n.held(c))
	}
}

// admit takes one connection through the gate and serves it in a goroutine of its own. Every connection gets its challenge: who is
// refused before it can prove the token may be an honest peer of the address that bad ones come from.
func (n *Node) admit(c net.Conn) {
	p, evicted := n.gate.enter(n.ctx, c, sourceOf(c.RemoteAddr()))
	if evicted != nil {
		n.count.madeRoom.Add(1)
		n.gate.fail(evicted.source, time.Now())
	}
	if p != nil && !n.spawn(func() { n.serve(p) }) {
		n.gate.leave(p)
		c.Close()
	}
}

// serve shakes hands as the target, and then reads until the session ends; a connection that resumes one goes to it.
func (n *Node) serve(p *guest) {
	f, challenge, err := n.prove(p)
	if r, ok := f.(*wire.Resume); ok && err == nil {
		err = n.resume(p.conn, r, challenge)
		if err == nil {
			return
		}
	}
	hello, ok := f.(*wire.Hello)
	if err != nil || !ok {
		n.cfg.Log.Debug("control connection refused", "from", p.conn.RemoteAddr().String(), "error", err)
		p.conn.Close()
		return
	}
	in := newIn(n, hello)
	s := in.session
	s.source = p.source
	defer n.remove(s)
	if why := n.makeRoom(s); why != nil {
		n.count.refused.Add(1)
		n.reject(p.conn, why, n.sign(challenge, hello.Nonce))
		p.conn.Close()
		return
	}
	if !n.add(s) || !s.attach(p.conn, netip.AddrPort{}) {
		p.conn.Close()
		return
	}
	welcome, err := in.admitted(hello)
	if err != nil {
		n.count.refused.Add(1)
		n.reject(p.conn, rejection(err), n.sign(challenge, hello.Nonce))
		s.end(Lost, err, nil)
		return
	}
	welcome.Mac, err = wire.MacWelcome(n.cfg.Identity.Token, challenge.Nonce, hello.Nonce, welcome)
	var first []byte
	if err == nil {
		first, err = wire.AppendFrame(nil, welcome)
	}
	wait := func() {}
	switch {
	case err != nil:
		s.end(Lost, s.explain(err), nil)
	case s.start(welcome.Mac, first):
		n.count.accepted.Add(1)
		n.cfg.Log.Debug("control session accepted", "peer", s.peer, "session", in.id)
		n.enlist(in)
		s.watchProcess(hello.Boot, hello.Process)
		defer n.dismiss(in)
		wait = s.loop(func() error { return nil })
	}
	n.finish(s, func(_ State, cause error) { n.target.Gone(in, cause) })
	wait()
}

// prove makes a connection prove that it has our token; it gives its Hello or Resume. On an error it has been counted, and
// rejected where that is due.
func (n *Node) prove(p *guest) (wire.Frame, *wire.Challenge, error) {
	_ = p.conn.SetDeadline(time.Now().Add(n.cfg.reach()))
	challenge := &wire.Challenge{Version: wire.Version}
	_, _ = rand.Read(challenge.Nonce[:]) // never fails
	f, err := readHello(p.conn, challenge)
	var why *RejectError
	if err == nil {
		why = n.verify(f, challenge)
	}
	if !n.gate.leave(p) {
		return nil, nil, errors.New("made room for another handshake") // counted by admit
	}
	switch {
	case n.ctx.Err() != nil:
		return nil, nil, ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		n.count.timedOut.Add(1)
		n.gate.fail(p.source, time.Now())
		return nil, nil, err
	case err != nil:
		n.count.badFrame.Add(1)
		if !hungUp(err) { // an initiator that resumes over several paths hangs up on all but one
			n.gate.fail(p.source, time.Now())
		}
		return nil, nil, err
	case why == nil:
		return f, challenge, nil
	case why.Code == wire.CodeVersion:
		n.count.badVersion.Add(1) // this one and the next are mistakes of honest peers: not held against the source
	case why.Code == wire.CodeEngine:
		n.count.wrongEngine.Add(1)
	default:
		n.count.badToken.Add(1)
		n.gate.fail(p.source, time.Now())
	}
	n.reject(p.conn, why, nil)
	return nil, nil, why
}

// readHello reads the Hello or Resume that answers a challenge.
func readHello(c net.Conn, challenge *wire.Challenge) (wire.Frame, error) {
	if err := wire.WriteFrame(c, challenge); err != nil {
		return nil, err
	}
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

// verify checks what a Hello or a Resume claims; nil when all is well.
func (n *Node) verify(f wire.Frame, challenge *wire.Challenge) *RejectError {
	var version uint32
	var target wire.EngineID
	var claimed, mac wire.Mac
	var err error
	switch f := f.(type) {
	case *wire.Hello:
		version, target, claimed = f.Version, f.Target, f.Mac
		mac, err = wire.MacHello(n.cfg.Identity.Token, challenge.Nonce, f)
	case *wire.Resume:
		version, target, claimed = f.Version, f.Target, f.Mac
		mac, err = wire.MacResume(n.cfg.Identity.Token, challenge.Nonce, f)
	}
	if version != wire.Version {
		return &RejectError{Code: wire.CodeVersion, Text: fmt.Sprintf("control protocol %d, here %d: install the same GORAIL on both sides", version, wire.Version)}
	}
	if target != n.cfg.Identity.Engine {
		return &RejectError{Code: wire.CodeEngine, Text: "not this engine: the peer was restarted; load its new metadata"}
	}
	if err != nil || !mac.Equal(claimed) {
		return &RejectError{Code: wire.CodeToken, Text: "wrong token: load the peer's metadata again"}
	}
	return nil
}

// rejection is what a refused initiator is told.
func rejection(err error) *RejectError {
	var r *RejectError
	if errors.As(err, &r) {
		return r
	}
	return &RejectError{Code: wire.CodeInternal, Text: err.Error()}
}

// reject sends a Reject, as far as the other side takes it at once. sign is nil where the other side has not proved itself.
func (n *Node) reject(c net.Conn, r *RejectError, sign func(*wire.Reject)) {
	f := &wire.Reject{Code: r.Code, Text: clip(r.Text)}
	if sign != nil {
		sign(f)
	}
	_ = c.SetDeadline(time.Now().Add(linger))
	_ = wire.WriteFrame(c, f)
}

// sign proves a Reject to an initiator that has proved itself.
func (n *Node) sign(challenge *wire.Challenge, asked wire.Nonce) func(*wire.Reject) {
	return func(f *wire.Reject) {
		if mac, err := wire.MacReject(n.cfg.Identity.Token, challenge.Nonce, asked, f); err == nil {
			f.Mac = mac
		}
	}
}
