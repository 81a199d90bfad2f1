package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"gorail/backend/host"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

// answerMin is the least time that a target gets to answer a Resume. The usual time is a sixth of Config.heartbeat.
const answerMin = 100 * time.Millisecond

// try tries one address repeatedly, after its delay.
func (k *reconnect) try(ctx context.Context, a netip.AddrPort, delay time.Duration, outcomes chan<- outcome) {
	if !pause(ctx, delay) {
		return
	}
	report := func(err error) bool {
		select {
		case outcomes <- outcome{a, err}:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if !report(errBegun) {
		return
	}
	for backoff := firstBackoff; ; backoff = min(2*backoff, maxBackoff) {
		err := k.attempt(ctx, a, func() { report(errAccepted) })
		if err == errNoTurn && ctx.Err() == nil { // nothing is known of the address
			backoff = firstBackoff
			continue
		}
		if unreached(err) {
			backoff = firstBackoff // its requests have had their pauses
		}
		if !report(err) || err == nil || !pause(ctx, backoff) {
			return
		}
	}
}

// attempt resumes the session over one address. It returns nil if that succeeded, or is no longer necessary. It calls
// connected when the address has accepted a connection.
func (k *reconnect) attempt(ctx context.Context, a netip.AddrPort, connected func()) error {
	o := k.out
	var err error
	o.stream.Do(func(l lockedStream) { err = k.notNeeded(l, a) })
	begun, round := time.Now(), ctx
	if err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, min(o.cfg.heartbeat()/2, o.cfg.ConnectTimeout))
		defer cancel()
		err = k.connect(ctx, round, a, connected)
	}
	switch {
	case errors.Is(err, errConnected):
		return nil
	case errors.Is(err, net.ErrClosed) && ctx.Err() != nil: // ctx closed the connection
		return timedOut(ctx.Err(), begun, noFrame)
	}
	return timedOut(err, begun, "the session was not resumed")
}

// connect connects and resumes the session. The time of ctx is for the challenge; round bounds what follows, which is costly, and has its own times.
func (k *reconnect) connect(ctx, round context.Context, a netip.AddrPort, connected func()) error {
	o := k.out
	begun := time.Now()
	c, err := host.Connect(ctx, func() time.Duration { return k.requestPause(a.Addr()) }, func(ctx context.Context) (net.Conn, error) { return o.dial(ctx, a) })
	if err != nil {
		return timedOut(err, begun, noConnection)
	}
	c = held(o.cfg.CloseInForks, c)
	reached := func() {
		o.stream.Do(func(l lockedStream) {
			if slices.Contains(o.proved, a) {
				l.Reached()
			}
		})
	}
	reached()
	defer reached()
	connected()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	challenge, err := readChallenge(c)
	if !stop() {
		err = ctx.Err()
	}
	late := false
	if err == nil {
		stop = context.AfterFunc(round, func() { c.Close() })
		err = k.handshake(round, c, challenge, a, stop)
		late = errors.Is(err, os.ErrDeadlineExceeded)
	}
	if err != nil {
		var given *committedError
		parks := errors.As(err, &given) && !busy(err) && !dropped(err) // else the target does not use it
		err = withPackets(err, c)
		stop()
		o.stream.Do(func(l lockedStream) {
			if late {
				k.vain++
			}
			if parks {
				l.Park(c)
			} else {
				c.Close()
			}
		})
	}
	return err
}

// committedError is the error of a connection after its Resume: the target may have it by now.
type committedError struct{ error }

// Unwrap implements errors.
func (e *committedError) Unwrap() error { return e.error }

// starved is the time for an answer of a peer whose host acknowledges what we ask: half of a beat, and twice as much after each try in vain. Tries that are given up
// too early cost a starving peer a handshake each.
func (k *reconnect) starved() time.Duration {
	var vain int
	k.out.stream.Do(func(lockedStream) { vain = k.vain })
	return min(k.out.cfg.heartbeat()/2<<min(vain, 5), maxProof, k.out.cfg.ConnectTimeout)
}

// patience gives a step of the handshake its time. If that is over, and the target's kernel has acknowledged our bytes, its process starves for processor time, and
// has more: see starved. The caller calls the result after the step.
func (k *reconnect) patience(c net.Conn) (over func()) {
	within := max(answerMin, k.out.cfg.heartbeat()/6)
	_ = c.SetDeadline(time.Now().Add(max(within, k.starved())))
	var mu sync.Mutex
	done := false
	timer := time.AfterFunc(within, func() {
		mu.Lock()
		defer mu.Unlock()
		if info, ok := host.TCPInfo(c); !done && (!ok || info.Unacked > 0) {
			_ = c.SetDeadline(time.Unix(1, 0))
		}
	})
	return func() {
		timer.Stop()
		mu.Lock()
		defer mu.Unlock()
		done = true
	}
}

// handshake is the initiator's side of the handshake that resumes a session. stop keeps the end of ctx from closing
// the connection.
func (k *reconnect) handshake(ctx context.Context, c net.Conn, challenge *wire.Challenge, a netip.AddrPort, stop func() bool) (err error) {
	o := k.out
	o.stream.Do(lockedStream.peerLives)
	if k.leavesFromSuspect(c) && !pause(ctx, lastResort) {
		return ctx.Err()
	}
	select {
	case k.claim <- struct{}{}:
		defer func() { <-k.claim }()
	case <-time.After(min(o.cfg.heartbeat(), o.cfg.reach()) / 2): // else the target ends the connection, which has shown no token
		return errNoTurn
	case <-ctx.Done():
		return ctx.Err()
	}
	o.stream.Do(func(l lockedStream) { err = k.notNeeded(l, a) }) // TLS is most of the cost of an attempt
	if err != nil {
		return err
	}
	over := k.patience(c)
	conn, err := o.secure(c, challenge)
	over()
	if err != nil {
		return err
	}
	own, err := o.proveSelf(trust.Initiator, conn, nil)
	if err != nil {
		return &finalError{err}
	}
	if !stop() {
		return ctx.Err()
	}
	r, err := k.commit(a, conn.Bind)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = &committedError{err}
		}
	}()
	ended := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer ended()
	r.Identity = own
	over = k.patience(c)
	f, err := ask(conn, r)
	over()
	if errors.Is(err, errBusy) { // the peer itself: TLS has proved it
		o.stream.Do(lockedStream.peerHungUp)
	}
	if err != nil {
		return err
	}
	answer, ok := f.(*wire.Resumed)
	if ok {
		o.stream.Do(func(l lockedStream) { ok = l.Answers(answer, conn.Bind) })
	}
	if !ok {
		return fmt.Errorf("%w: %v instead of a correct answer to a resume", ErrProtocol, f.Type())
	}
	proved, err := o.check(trust.Target, conn, &answer.Identity, o.to.Agent)
	if err != nil {
		return &finalError{err}
	}
	if !ended() {
		return ctx.Err()
	}
	if err = o.moveTo(conn, a, answer.Got); err == nil {
		o.renewals.proved(o.renewal, proved)
		o.stream.LogResumed(conn)
	}
	return err
}

// leavesFromSuspect reports whether a connection leaves from the suspected local address, although the peer has
// several addresses.
func (k *reconnect) leavesFromSuspect(c net.Conn) (leavesFromSuspect bool) {
	k.out.stream.Do(func(lockedStream) {
		leavesFromSuspect = len(k.out.to.Control) > 1 && k.avoid.IsValid() && localAddr(c) == k.avoid
	})
	return leavesFromSuspect
}

// notNeeded returns the reason not to try an address, if there is one.
func (k *reconnect) notNeeded(l lockedStream, a netip.AddrPort) error {
	switch {
	case l.State().Over():
		return ErrClosed
	case !l.Connected():
	case !k.urgent && k.works(l):
		return errConnected
	case k.urgent && !k.renew && a == l.At() && len(k.out.to.Control) > 1 && !l.repeats():
		return errors.New("same address as the suspected connection")
	}
	return nil
}

// commit gives up the connection in use, in favour of the connection x to an address.
func (k *reconnect) commit(a netip.AddrPort, x trust.Binding) (r *wire.Resume, err error) {
	o := k.out
	o.stream.Do(func(l lockedStream) {
		if err = k.notNeeded(l, a); err == nil {
			r = &wire.Resume{Engine: o.cfg.Identity.Engine, Session: o.id.Load()}
			l.Commit(r, x)
		}
	})
	return r, err
}

// moveTo continues the session on a connection over an address. The target has received got frames.
func (o *Out) moveTo(c net.Conn, a netip.AddrPort, got uint64) (err error) {
	o.stream.Do(func(l lockedStream) {
		switch {
		case l.State().Over():
			err = ErrClosed
			return
		case !l.Resume(newStreamConn(c, a, nil), got):
			err = &finalError{fmt.Errorf("%w: the answer to a resume acknowledges %d frames, an impossible number", ErrProtocol, got)}
			return
		}
		o.proves(a)
		o.resumed = true
		o.overdue.sought = later(o.overdue.sought, o.overdue.ahead) // what a guess has found counts, too
		if k := o.reconnect; k != nil {
			k.endUrgency()
			k.since = time.Time{} // other addresses that answer later find that the connection works
		}
	})
	return err
}
