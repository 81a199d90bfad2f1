package peer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"gorail/backend/wire"
)

// answerMin is how long a Resume may take at least; else it is a sixth of Config.heartbeat.
const answerMin = 100 * time.Millisecond

// try tries one address, from its turn on, again and again.
func (k *search) try(ctx context.Context, a netip.AddrPort, delay time.Duration, outcomes chan<- outcome) {
	if !pause(ctx, delay) {
		return
	}
	for backoff := firstBackoff; ; backoff = min(2*backoff, maxBackoff) {
		err := k.attempt(ctx, a)
		select {
		case outcomes <- outcome{a, err}:
		case <-ctx.Done():
			return
		}
		if err == nil || !pause(ctx, backoff) {
			return
		}
	}
}

// attempt resumes the session over one address. nil: it has, or that is not needed any more.
func (k *search) attempt(ctx context.Context, a netip.AddrPort) error {
	s, n := k.out.session, k.out.session.node
	s.mu.Lock()
	err := k.needless(a)
	s.mu.Unlock()
	begun := time.Now()
	if err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, min(n.cfg.heartbeat()/2, n.cfg.ConnectTimeout))
		defer cancel()
		err = k.connect(ctx, a)
	}
	switch {
	case errors.Is(err, errSettled):
		return nil
	case errors.Is(err, net.ErrClosed) && ctx.Err() != nil: // which closed it
		return timedOut(ctx.Err(), begun, noWord)
	}
	return timedOut(err, begun, "the session was not resumed")
}

func (k *search) connect(ctx context.Context, a netip.AddrPort) error {
	s := k.out.session
	begun := time.Now()
	c, err := s.node.dial(ctx, a)
	if err != nil {
		return timedOut(err, begun, noConnection)
	}
	c = s.node.held(c)
	count := func(n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		k.shakes += n
		if k.out.proved[a] {
			s.reached = time.Now()
		}
	}
	count(1)
	defer count(-1)
	stop := context.AfterFunc(ctx, func() { c.Close() })
	if err = k.shake(ctx, c, a, stop); err != nil {
		stop()
		c.Close()
	}
	return err
}

// shake is the initiator's side of the handshake that resumes a session. stop keeps the end of ctx from closing the connection.
func (k *search) shake(ctx context.Context, c net.Conn, a netip.AddrPort, stop func() bool) error {
	o, s := k.out, k.out.session
	challenge, err := readChallenge(c)
	if err != nil {
		return err
	}
	if k.shy(c) && !pause(ctx, lastResort) {
		return ctx.Err()
	}
	select {
	case k.claim <- struct{}{}:
		defer func() { <-k.claim }()
	case <-ctx.Done():
		return ctx.Err()
	}
	r, err := k.commit(a)
	if err != nil {
		return err
	}
	_, _ = rand.Read(r.Nonce[:]) // never fails
	if r.Mac, err = wire.MacResume(o.to.Token, challenge.Nonce, r); err != nil {
		return &finalError{err}
	}
	_ = c.SetDeadline(time.Now().Add(max(answerMin, s.node.cfg.heartbeat()/6)))
	var f wire.Frame
	begun := time.Now()
	if err = wire.WriteFrame(c, r); err == nil {
		f, err = wire.ReadFrame(c, wire.HandshakeLimit)
	}
	if hungUp(err) {
		return errBusy
	} else if err != nil {
		return timedOut(err, begun, noWord)
	}
	switch f := f.(type) {
	case *wire.Reject:
		return rejected(o.to.Token, challenge.Nonce, r.Nonce, f)
	case *wire.Resumed:
		mac, err := wire.MacResumed(o.to.Token, challenge.Nonce, r.Nonce, f)
		if err != nil || !mac.Equal(f.Mac) || f.Engine != o.to.Engine || f.Session != r.Session || f.Version != wire.Version {
			return fmt.Errorf("%w: its answer does not prove that it is the engine that was meant", ErrProtocol)
		}
		if !stop() {
			return ctx.Err()
		}
		if err = o.moveTo(newLine(c, a), f.Got); err == nil {
			s.logResumed(c)
		}
		return err
	}
	return fmt.Errorf("%w: %v instead of an answer to a resume", ErrProtocol, f.Type())
}

// shy says that a connection leaves from the address that is suspected, though there may be others.
func (k *search) shy(c net.Conn) bool {
	s := k.out.session
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(k.out.to.Control) > 1 && k.avoid.IsValid() && localAddr(c) == k.avoid
}

// needless says why an address need not be tried, if so. With the session's lock held.
func (k *search) needless(a netip.AddrPort) error {
	s := k.out.session
	switch {
	case s.state.over():
		return ErrClosed
	case s.line == nil:
	case !k.urgent && k.works():
		return errSettled
	case k.urgent && a == s.at && len(k.out.to.Control) > 1:
		return errors.New("leads where the suspected connection leads")
	}
	return nil
}

// commit gives up the line in use for an address that has answered: nothing more is taken in from it, so that the count in
// the Resume is final.
func (k *search) commit(a netip.AddrPort) (*wire.Resume, error) {
	o, s := k.out, k.out.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := k.needless(a); err != nil {
		return nil, err
	}
	if s.line != nil {
		s.unplug(errUneasy)
	}
	s.try++
	return &wire.Resume{Version: wire.Version, Engine: s.node.cfg.Identity.Engine, Target: o.to.Engine, Session: o.id.Load(),
		Proof: s.proof, Try: s.try, Got: s.got}, nil
}

// moveTo makes a line the session's, whose target has got so many frames.
func (o *Out) moveTo(l *line, got uint64) error {
	s := o.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.over() {
		return ErrClosed
	}
	if !s.adopt(l, got) {
		return &finalError{fmt.Errorf("%w: resumed after %d frames, which can't be", ErrProtocol, got)}
	}
	o.proved[l.addr], o.resumed = true, true
	if k := o.search; k != nil {
		k.calm()
		k.since = time.Time{} // whoever answered later finds that the line works
	}
	return nil
}
