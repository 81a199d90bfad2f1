package peer

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/host"
	"gorail/backend/limits"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

const (
	acceptBackoff    = 5 * time.Millisecond // after a failed accept; doubled up to the maximum
	acceptBackoffMax = time.Second
	acceptLogEvery   = time.Minute
)

// handshakes is the number of TLS handshakes at a time, a quarter of them with one source.
const handshakes = 64

// waitingPerTurn is the number of connections that have shown the token, for each turn of TLS.
const waitingPerTurn = 4

// acceptor serves initiators: it accepts connections, and starts a session for each initiator that proves it has the
// token.
type acceptor struct {
	*base
	target   TargetHandler
	sessions *sessionTable
	limiter  *handshakeLimiter // of connections that have not shown the token
	shown    *handshakeLimiter // of those that have, and have sent no Hello yet
	turns    *handshakeTurns   // of TLS handshakes
	refusals limits.Lines      // limits log lines of refused identities
	begun    func(*stream)     // told of each session that has begun
}

func newAcceptor(b *base, sessions *sessionTable, target TargetHandler) *acceptor {
	shown := Default
	shown.HalfOpen = waitingPerTurn * handshakes
	open := Default
	open.Places = host.Places
	return &acceptor{base: b, target: target, sessions: sessions, limiter: newLimiter(open), shown: newLimiter(shown),
		turns: newTurns(handshakes, func() { b.cfg.Limits.Hit(limits.Handshakes) }, func() { b.cfg.Limits.Hit(limits.SourceHandshakes) })}
}

// opening reports that a connection is in its handshake that may be a Resume: one that is new, or has a turn or waits for it. Others are silent, as that of a process
// that was stopped is: they may stay for twice maxProof, and must not delay the news that another peer has died.
func (a *acceptor) opening() bool {
	young := time.Now().Add(-a.cfg.reach())
	return a.limiter.Since(young) || a.shown.Since(young) || a.turns.Busy()
}

// accept accepts connections until the node closes. When accept fails (no descriptors left), it backs off.
func (a *acceptor) accept(l net.Listener) {
	backoff := acceptBackoff
	var lastLogged time.Time
	for {
		c, err := l.Accept()
		if a.env.Ctx.Err() != nil || errors.Is(err, net.ErrClosed) { // the node closes, or listens elsewhere
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil {
			if !host.NobodyWaits(l, err) {
				lastLogged = a.unaccepted(l, err, lastLogged)
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
		a.admit(held(a.cfg.CloseInForks, c))
	}
}

// unaccepted tells an error of accept, and makes room for the connection that waits. It returns when an error was last logged.
func (a *acceptor) unaccepted(l net.Listener, err error, logged time.Time) time.Time {
	a.count.acceptErrors.Add(1)
	if host.Exhausted(err) {
		a.limiter.Shed()
	}
	if !logged.IsZero() && time.Since(logged) <= acceptLogEvery {
		return logged
	}
	a.cfg.Log.Warn("control channel cannot accept: raise the limit of open files with ulimit -n", "address", l.Addr().String(), "error", err)
	return time.Now()
}

// admit passes one connection through the limiter and serves it in its own goroutine. Every connection gets a
// challenge. A refusal before the challenge would hit an honest peer that shares its address with bad ones.
func (a *acceptor) admit(c net.Conn) {
	p, evicted := a.limiter.Enter(a.env.Ctx, c, SourceOf(c.RemoteAddr()))
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
func (a *acceptor) serve(p *pendingHandshake) {
	if b := a.handshake(p); b != nil {
		a.run(b)
	}
}

// begun is a session that the target has admitted.
type begun struct {
	in      *In
	proved  trust.Peer
	process wire.Process
	boot    string
	ready   bool // else it is over
}

// handshake does the target's side of the handshake; nil: no session has begun.
func (a *acceptor) handshake(p *pendingHandshake) *begun {
	f, c, err := a.prove(p)
	if err != nil {
		a.cfg.Log.Debug("control connection refused", "from", p.Conn.RemoteAddr().String(), "error", err)
		return nil
	}
	switch f := f.(type) {
	case *wire.Resume:
		if err := a.resume(c, f); err != nil {
			a.cfg.Log.Debug("resume refused", "from", c.RemoteAddr().String(), "error", err)
			c.Close()
		}
	case *wire.Hello:
		return a.begin(c, f, p.Source)
	}
	return nil
}

// begin starts the session of an authenticated Hello; nil: it is refused.
func (a *acceptor) begin(c *SecureConn, hello *wire.Hello, source netip.Addr) *begun {
	proved, own, err := a.identities(c, &hello.Identity, hello.Agent)
	if err != nil {
		reject(c, refusal(err))
		c.Close()
		if _, ok := a.refusals.Next(time.Now()); ok {
			a.cfg.Log.Warn("peer refused", "peer", clipText(hello.Agent), "from", c.RemoteAddr().String(), "error", err, errcode.Key, errcode.PeerRefused)
		}
		return nil
	}
	in := newIn(a.base, a.target, hello, limits.Owner{Source: source, Identity: proved.ID()})
	s := in.stream
	if why := a.sessions.place(s, in.owner, proved); why != nil {
		a.count.refused.Add(1)
		reject(c, why)
		c.Close()
		a.sessions.remove(s)
		return nil
	}
	if !a.sessions.add(s) || !s.Attach(c, netip.AddrPort{}) {
		c.Close()
		a.sessions.remove(s)
		return nil
	}
	var welcome *wire.Welcome
	secret, err := trust.SessionSecret(a.cfg.Identity.Token, c.Bind)
	s.Own(secret)
	if err == nil {
		welcome, err = in.admitted(hello, own)
	}
	if err != nil {
		a.count.refused.Add(1)
		reject(c, rejection(err))
		s.End(Lost, err, nil)
		a.sessions.remove(s)
		return nil
	}
	first, err := wire.AppendFrame(nil, welcome)
	if err != nil {
		s.End(Lost, s.Explain(err), nil)
	}
	return &begun{in, proved, hello.Process, hello.Boot, err == nil && s.Start(secret, first)}
}

// run is the session's goroutine from here on. Its stack is small while it waits: see stream.frame.
func (a *acceptor) run(b *begun) {
	s := b.in.stream
	defer a.sessions.remove(s)
	wait := func() {}
	if b.ready {
		a.accepted(b)
		defer a.renewals.begin(b.in.renewal, b.proved)()
		a.sessions.addServed(b.in) // a Resume may come from here on
		a.begun(s)
		a.watchProcess(s, b.boot, b.process)
		defer a.sessions.removeServed(b.in)
		wait = s.Run(func() error { return nil })
	}
	a.finish(s, func(_ State, cause error) { a.target.Gone(b.in, cause) })
	wait()
}

func (a *acceptor) accepted(b *begun) {
	a.count.accepted.Add(1)
	a.cfg.Log.Debug("control session accepted", "peer", b.in.stream.Peer(), "session", b.in.id)
}
