package peer

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"gorail/backend/peer/limiter"
	"gorail/backend/peer/stream"
	"gorail/backend/wire"
)

// prove makes a connection prove that it has our token, and returns its Hello or Resume. On an error prove has
// counted the failure, and sent a Reject if one is due.
func (a *acceptor) prove(p *limiter.Pending) (wire.Frame, *wire.Challenge, error) {
	_ = p.Conn.SetDeadline(time.Now().Add(a.cfg.reach()))
	challenge := &wire.Challenge{Version: wire.Version}
	_, _ = rand.Read(challenge.Nonce[:]) // never fails
	f, err := readHello(p.Conn, challenge)
	var why *RejectError
	if err == nil {
		why = a.verify(f, challenge)
	}
	if !a.limiter.Leave(p) {
		return nil, nil, errors.New("evicted for another handshake") // counted by admit
	}
	switch {
	case a.env.Ctx.Err() != nil:
		return nil, nil, ErrClosed
	case errors.Is(err, os.ErrDeadlineExceeded):
		a.count.timedOut.Add(1)
		a.limiter.Fail(p.Source, time.Now())
		return nil, nil, err
	case err != nil:
		a.count.badFrame.Add(1)
		if !stream.HungUp(err) { // an initiator that resumes over several paths hangs up on all but one
			a.limiter.Fail(p.Source, time.Now())
		}
		return nil, nil, err
	case why == nil:
		return f, challenge, nil
	case why.Code == wire.CodeVersion:
		a.count.badVersion.Add(1) // honest peers make this mistake and the next, so the source is not blamed
	case why.Code == wire.CodeEngine:
		a.count.wrongEngine.Add(1)
	default:
		a.count.badToken.Add(1)
		a.limiter.Fail(p.Source, time.Now())
	}
	reject(p.Conn, why, nil)
	return nil, nil, why
}

// readHello sends a challenge and reads the Hello or Resume that answers it.
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

// verify checks the claims of a Hello or a Resume. It returns nil if they are correct.
func (b *base) verify(f wire.Frame, challenge *wire.Challenge) *RejectError {
	var version uint32
	var target wire.EngineID
	var claimed, mac wire.Mac
	var err error
	switch f := f.(type) {
	case *wire.Hello:
		version, target, claimed = f.Version, f.Target, f.Mac
		mac, err = wire.MacHello(b.cfg.Identity.Token, challenge.Nonce, f)
	case *wire.Resume:
		version, target, claimed = f.Version, f.Target, f.Mac
		mac, err = wire.MacResume(b.cfg.Identity.Token, challenge.Nonce, f)
	}
	if version != wire.Version {
		return &RejectError{Code: wire.CodeVersion, Text: fmt.Sprintf("the initiator has control protocol %d, the target %d: install the same GORAIL on both sides", version, wire.Version)}
	}
	if target != b.cfg.Identity.Engine {
		return &RejectError{Code: wire.CodeEngine, Text: "not this engine: the peer was restarted; load its new metadata"}
	}
	if err != nil || !mac.Equal(claimed) {
		return &RejectError{Code: wire.CodeToken, Text: "wrong token: load the peer's metadata again"}
	}
	return nil
}

// rejection returns the error to send to a refused initiator.
func rejection(err error) *RejectError {
	var r *RejectError
	if errors.As(err, &r) {
		return r
	}
	return &RejectError{Code: wire.CodeInternal, Text: err.Error()}
}

// reject sends a Reject, waiting at most Linger. sign is nil if the other side is not authenticated.
func reject(c net.Conn, r *RejectError, sign func(*wire.Reject)) {
	f := &wire.Reject{Code: r.Code, Text: stream.Clip(r.Text)}
	if sign != nil {
		sign(f)
	}
	_ = c.SetDeadline(time.Now().Add(stream.Linger))
	_ = wire.WriteFrame(c, f)
}

// sign returns a function that signs a Reject for an authenticated initiator.
func (b *base) sign(challenge *wire.Challenge, asked wire.Nonce) func(*wire.Reject) {
	return func(f *wire.Reject) {
		if mac, err := wire.MacReject(b.cfg.Identity.Token, challenge.Nonce, asked, f); err == nil {
			f.Mac = mac
		}
	}
}
