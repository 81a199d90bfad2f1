package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// How long a dial continues after a failure that may pass. Anybody can refuse a connection or reject a handshake, and
// a busy target becomes free.
const (
	refusalPeriod = 600 * time.Millisecond // an unproved refusal counts after all addresses have refused for this long
	firstBackoff  = 20 * time.Millisecond
	maxBackoff    = 160 * time.Millisecond
)

// welcomed is the outcome of a successful dial.
type welcomed struct {
	*wire.Welcome
	secret *trust.Secret // of the session
	proved trust.Peer    // the target's
}

// connect tries the target's addresses until one sends a Welcome, or none is left to try, or ConnectTimeout is over.
func (o *Out) connect() (w welcomed, err error) {
	ctx, cancel := context.WithTimeout(o.stream.Context(), o.cfg.ConnectTimeout)
	defer cancel()
	addrs := o.addrs()
	if len(addrs) == 0 {
		return w, fmt.Errorf("%w: %s: none of the peer's control addresses (%s) can be reached from this host: let the peer listen on an address of a network that both hosts share (option control_devices; provider=sm alone listens on the loopback interface)",
			ErrUnreachable, o.stream.Peer(), strings.Join(o.to.Control, ", "))
	}
	since := make(map[netip.AddrPort]time.Time) // when an address began to refuse
	var tried failures                          // the last failure of each address
	reached := false                            // an address has accepted a connection
	for backoff := firstBackoff; ; backoff = min(2*backoff, maxBackoff) {
		var again []netip.AddrPort
		for i, a := range addrs {
			w, err := o.try(ctx, a, len(addrs)-i)
			if err == nil {
				return w, nil
			}
			if err == errNotTried && tried.has(a) {
				continue // the earlier failure says more
			}
			tried = append(slices.DeleteFunc(tried, func(f failure) bool { return f.addr == a }), failure{a, err})
			if final(err) {
				return w, o.failed(failures{{a, err}})
			}
			if _, known := since[a]; !known || !transient(err) {
				since[a] = time.Now()
			}
			reached = reached || accepted(err) || errors.Is(err, errBusy)
			if transient(err) && time.Since(since[a]) < refusalPeriod || busy(err) || reached && unreached(err) { // a host that starves accepts none for a while
				again = append(again, a)
			}
		}
		if len(again) == 0 || !pause(ctx, backoff) {
			return w, o.failed(tried)
		}
		addrs = again
	}
}

// try dials one address and does the handshake. Each address gets an equal share of the remaining time. Connecting may
// take at most the same share of Config.reach. So a host that drops our packets leaves time for an address that answers
// slowly.
func (o *Out) try(ctx context.Context, a netip.AddrPort, share int) (w welcomed, err error) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return w, errNotTried
	}
	until, _ := ctx.Deadline() // connect has set one
	reach, cancel := context.WithTimeout(ctx, min(time.Until(until), o.cfg.reach())/time.Duration(share))
	defer cancel()
	begun := time.Now()
	handshakeBy := begun.Add(time.Until(until) / time.Duration(share))
	by, _ := reach.Deadline()
	left := time.Until(by)
	c, err := o.dial(reach, a)
	if err != nil {
		err = timedOut(err, begun, noConnection)
		if left <= 0 || time.Since(by) > starvedBy {
			err = &starvedError{err}
		}
		return w, err
	}
	accepted := time.Now()
	o.stream.Do(func(lockedStream) { o.trips.note(a.Addr(), accepted.Sub(begun)) })
	c = held(o.cfg.CloseInForks, c)
	if !o.stream.Attach(c, a) { // an end of the stream closes it from now on
		return w, ErrClosed
	}
	_ = c.SetDeadline(handshakeBy)
	conn, w, err := o.handshake(c)
	if err != nil {
		err = withPackets(err, c)
		o.stream.Detach()
	} else if !o.stream.Attach(conn, a) {
		w.secret.Wipe()
		err = ErrClosed
	} else {
		o.stream.Do(func(lockedStream) { o.took = time.Since(accepted) })
	}
	return w, err
}

// readChallenge reads the first frame of a target.
func readChallenge(c net.Conn) (*wire.Challenge, error) {
	begun := time.Now()
	challenge, err := ReadChallenge(c)
	switch {
	case hungUp(err):
		return nil, errBusy
	case errors.Is(err, wire.ErrVersion) || errors.Is(err, ErrProtocol):
		return nil, err
	case malformed(err):
		return nil, fmt.Errorf("%w: the process at this address does not speak the control protocol of GORAIL: %w", ErrProtocol, err)
	case err != nil:
		return nil, timedOut(err, begun, noFrame)
	}
	return challenge, nil
}

// secure authenticates a connection to the target that has sent a challenge.
func (o *Out) secure(c net.Conn, challenge *wire.Challenge) (*SecureConn, error) {
	begun := time.Now()
	s, err := Connect(c, challenge, &o.to, o.cfg.Key)
	var refused *refused
	switch {
	case errors.As(err, &refused):
		return nil, &RejectError{Code: refused.Reject.Code, Text: refused.Reject.Text}
	case hungUp(err):
		return nil, errBusy
	case err != nil:
		return nil, timedOut(err, begun, noFrame)
	}
	return s, nil
}

// ask sends the frame that follows TLS, and reads the target's answer. A Reject is returned as an error.
func ask(c *SecureConn, f wire.Frame) (wire.Frame, error) {
	begun := time.Now()
	err := wire.WriteFrame(c, f)
	if err == nil {
		f, err = wire.ReadFrame(c, wire.HandshakeLimit)
	}
	if hungUp(err) {
		return nil, errBusy
	} else if err != nil {
		return nil, timedOut(err, begun, noFrame)
	}
	if r, ok := f.(*wire.Reject); ok {
		return nil, &RejectError{Code: r.Code, Text: r.Text, Proved: true} // by the key of the target
	}
	return f, nil
}

// handshake is the initiator's side of the handshake. The secret is the session's.
func (o *Out) handshake(c net.Conn) (conn *SecureConn, w welcomed, err error) {
	challenge, err := readChallenge(c)
	if err != nil {
		return nil, w, err
	}
	o.place.answered()
	if !o.offered { // before TLS: the target does not wait for it
		err := o.env.Guard(o.String(), "offers", func() (err error) { o.offers, err = o.handler.Offers(); return err })
		if err != nil {
			return nil, w, &finalError{fmt.Errorf("%w: cannot open endpoints for the peer: %w", ErrHandler, err)}
		}
		o.offered = true
	}
	if conn, err = o.secure(c, challenge); err != nil {
		return nil, w, err
	}
	id := &o.cfg.Identity
	hello := &wire.Hello{Mac: trust.HelloMac(o.to.Token, conn.Bind), Engine: id.Engine, Agent: id.Agent,
		Session: o.number.Add(1), After: o.after, Boot: id.Boot, Process: id.Process, Offers: o.offers}
	o.id.Store(hello.Session)
	if hello.Identity, err = o.proveSelf(trust.Initiator, conn, nil); err != nil {
		return nil, w, &finalError{err}
	}
	f, err := ask(conn, hello)
	if err != nil {
		return nil, w, fmt.Errorf("hello: %w", err)
	}
	var ok bool
	if w.Welcome, ok = f.(*wire.Welcome); !ok || w.Session != hello.Session {
		return nil, w, fmt.Errorf("%w: %v instead of a welcome", ErrProtocol, f.Type())
	}
	if w.proved, err = o.check(trust.Target, conn, &w.Identity, o.to.Agent); err != nil {
		return nil, w, &finalError{err}
	}
	w.secret, err = trust.SessionSecret(o.to.Token, conn.Bind)
	return conn, w, err
}

// failed returns the error of a failed dial. It is marked as dead if all addresses refused: a refusal comes from a
// live host.
func (o *Out) failed(tried failures) error {
	if tried.dead() {
		return dead(o.explain(tried))
	}
	return o.explain(tried)
}

// explain makes one error of the failures of all addresses.
func (o *Out) explain(tried failures) error {
	for _, f := range tried {
		if errors.Is(f.err, wire.ErrVersion) || errors.Is(f.err, ErrRejected) || errors.Is(f.err, ErrProtocol) || errors.Is(f.err, ErrHandler) {
			return fmt.Errorf("%s: %w", o.stream.Peer(), tried) // these errors say what to do
		}
	}
	return fmt.Errorf("%w: %s: %w: check that the peer runs and that its metadata is current (option connect_timeout=%v)",
		ErrUnreachable, o.stream.Peer(), tried, o.cfg.ConnectTimeout)
}

// reachable orders a target's control addresses. On the same host and network namespace loopback addresses come
// first; otherwise they are left out.
func reachable(self, to *wire.ConnBlob) []netip.AddrPort {
	same := self.Boot != "" && self.Boot == to.Boot && self.NetNS == to.NetNS
	var loop, others []netip.AddrPort
	for _, text := range to.Control {
		a, err := netip.ParseAddrPort(text)
		if err != nil || a.Addr().IsUnspecified() || a.Port() == 0 {
			continue
		}
		if a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port()); !a.Addr().IsLoopback() {
			others = append(others, a)
		} else if same {
			loop = append(loop, a)
		}
	}
	return append(loop, others...)
}

// pause waits. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
