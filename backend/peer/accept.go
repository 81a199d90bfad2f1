package peer

import (
	"net"
	"net/netip"
	"time"

	"gorail/backend/peer/limiter"
	"gorail/backend/wire"
)

const (
	acceptBackoff    = 5 * time.Millisecond // after a failed accept; doubled up to the maximum
	acceptBackoffMax = time.Second
	acceptLogEvery   = time.Minute
)

// acceptor serves initiators: it accepts connections, and starts a session for each initiator that proves it has the
// token.
type acceptor struct {
	*base
	target   TargetHandler
	sessions *registry
	limiter  *limiter.Limiter
}

func newAcceptor(b *base, sessions *registry, target TargetHandler) *acceptor {
	return &acceptor{base: b, target: target, sessions: sessions, limiter: limiter.New(limiter.Default)}
}

// accept accepts connections until the node closes. When accept fails (no descriptors left), it backs off.
func (a *acceptor) accept(l net.Listener) {
	backoff := acceptBackoff
	var lastLogged time.Time
	for {
		c, err := l.Accept()
		if a.env.Ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil {
			a.count.acceptErrors.Add(1)
			if lastLogged.IsZero() || time.Since(lastLogged) > acceptLogEvery {
				lastLogged = time.Now()
				a.cfg.Log.Warn("control channel cannot accept: raise the limit of open files with ulimit -n", "address", l.Addr().String(), "error", err)
			}
			timer := time.NewTimer(backoff)
			select {
			case <-timer.C:
			case <-a.env.Ctx.Done():
			}
			timer.Stop()
			backoff = min(2*backoff, acceptBackoffMax)
			continue
		}
		backoff = acceptBackoff
		a.admit(held(a.cfg.Descriptors, c))
	}
}

// admit passes one connection through the limiter and serves it in its own goroutine. Every connection gets a
// challenge. A refusal before the challenge would hit an honest peer that shares its address with bad ones.
func (a *acceptor) admit(c net.Conn) {
	p, evicted := a.limiter.Enter(a.env.Ctx, c, limiter.SourceOf(c.RemoteAddr()))
	if evicted != nil {
		a.count.madeRoom.Add(1)
		a.limiter.Fail(evicted.Source, time.Now())
	}
	if p != nil && !a.spawn(func() { a.serve(p) }) {
		a.limiter.Leave(p)
		c.Close()
	}
}

// serve does the target's side of the handshake, and then reads until the session ends. A connection with a Resume
// goes to its session.
func (a *acceptor) serve(p *limiter.Pending) {
	f, challenge, err := a.prove(p)
	if r, ok := f.(*wire.Resume); ok && err == nil {
		err = a.resume(p.Conn, r, challenge)
		if err == nil {
			return
		}
	}
	hello, ok := f.(*wire.Hello)
	if err != nil || !ok {
		a.cfg.Log.Debug("control connection refused", "from", p.Conn.RemoteAddr().String(), "error", err)
		p.Conn.Close()
		return
	}
	in := newIn(a.base, a.target, hello, p.Source)
	s := in.stream
	defer a.sessions.remove(s)
	if why := a.sessions.place(s, in.source); why != nil {
		a.count.refused.Add(1)
		reject(p.Conn, why, a.sign(challenge, hello.Nonce))
		p.Conn.Close()
		return
	}
	if !a.sessions.add(s) || !s.Attach(p.Conn, netip.AddrPort{}) {
		p.Conn.Close()
		return
	}
	welcome, err := in.admitted(hello)
	if err != nil {
		a.count.refused.Add(1)
		reject(p.Conn, rejection(err), a.sign(challenge, hello.Nonce))
		s.End(Lost, err, nil)
		return
	}
	welcome.Mac, err = wire.MacWelcome(a.cfg.Identity.Token, challenge.Nonce, hello.Nonce, welcome)
	var first []byte
	if err == nil {
		first, err = wire.AppendFrame(nil, welcome)
	}
	wait := func() {}
	switch {
	case err != nil:
		s.End(Lost, s.Explain(err), nil)
	case s.Start(welcome.Mac, first):
		a.count.accepted.Add(1)
		a.cfg.Log.Debug("control session accepted", "peer", s.Peer(), "session", in.id)
		a.sessions.addServed(in)
		a.watchProcess(s, hello.Boot, hello.Process)
		defer a.sessions.removeServed(in)
		wait = s.Run(func() error { return nil })
	}
	a.finish(s, func(_ State, cause error) { a.target.Gone(in, cause) })
	wait()
}
