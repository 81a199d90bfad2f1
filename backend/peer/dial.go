package peer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"gorail/backend/wire"
)

// How long a dial goes on where that may help. Anybody can refuse a connection or reject a handshake; a busy target frees itself.
const (
	hintsFor     = 600 * time.Millisecond // how long addresses must have said no, without proof, to be believed
	firstBackoff = 20 * time.Millisecond
	maxBackoff   = 160 * time.Millisecond
)

// errBusy marks a target that closed the connection before its Welcome or Reject: it is out of descriptors, limits our
// address, or made room for others. Or it dies, and the next try is refused.
var errBusy = errors.New("closed the connection in the handshake: it is not a GORAIL engine, or too busy")

// failure is how one address failed.
type failure struct {
	addr netip.AddrPort
	err  error
}

// connect tries the target's addresses until one welcomes us, or none is left that may, or ConnectTimeout is over.
func (o *Out) connect() (*wire.Welcome, error) {
	n := o.session.node
	ctx, cancel := context.WithTimeout(o.session.ctx, n.cfg.ConnectTimeout)
	defer cancel()
	addrs := reachable(&n.cfg.Identity, &o.to)
	if len(addrs) == 0 {
		return nil, fmt.Errorf("%w: %s: none of its control addresses (%s) can be reached from here: have it listen on an address of the network between the two",
			ErrUnreachable, o.session.peer, strings.Join(o.to.Control, ", "))
	}
	since := make(map[netip.AddrPort]time.Time) // when an address began to say no
	var tried failures                          // the last of each address
	for backoff := firstBackoff; ; backoff = min(2*backoff, maxBackoff) {
		var again []netip.AddrPort
		for i, a := range addrs {
			w, err := o.try(ctx, a, len(addrs)-i)
			if err == nil {
				return w, nil
			}
			if err == errNoTime && tried.has(a) {
				continue // what it said before is more
			}
			tried = append(slices.DeleteFunc(tried, func(f failure) bool { return f.addr == a }), failure{a, err})
			if final(err) {
				return nil, o.failed(failures{{a, err}})
			}
			if _, known := since[a]; !known || !passing(err) {
				since[a] = time.Now()
			}
			if passing(err) && time.Since(since[a]) < hintsFor || busy(err) {
				again = append(again, a)
			}
		}
		if len(again) == 0 || !pause(ctx, backoff) {
			return nil, o.failed(tried)
		}
		addrs = again
	}
}

// try dials one address and shakes hands. Both may take their share of the time that is left; reaching the address not more than
// Config.reach of it: a host that drops what we send must not take the time of one that is slow to answer.
func (o *Out) try(ctx context.Context, a netip.AddrPort, share int) (*wire.Welcome, error) {
	n := o.session.node
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil, errNoTime
	}
	until, _ := ctx.Deadline() // connect sets one
	reach, cancel := context.WithTimeout(ctx, min(time.Until(until), n.cfg.reach())/time.Duration(share))
	defer cancel()
	begun := time.Now()
	shaken := begun.Add(time.Until(until) / time.Duration(share))
	c, err := n.dial(reach, a)
	if err != nil {
		return nil, timedOut(err, begun, noConnection)
	}
	c = n.held(c)
	if !o.session.attach(c, a) {
		return nil, ErrClosed
	}
	_ = c.SetDeadline(shaken)
	w, err := o.shake(c)
	if err != nil {
		o.session.detach()
	}
	return w, err
}

// readChallenge reads what a target says first.
func readChallenge(c net.Conn) (*wire.Challenge, error) {
	begun := time.Now()
	f, err := wire.ReadFrame(c, wire.HandshakeLimit)
	if hungUp(err) {
		return nil, errBusy
	} else if malformed(err) {
		return nil, fmt.Errorf("%w: something else answers at this address: %w", ErrProtocol, err)
	} else if err != nil {
		return nil, timedOut(err, begun, noWord)
	}
	challenge, ok := f.(*wire.Challenge)
	if !ok {
		return nil, fmt.Errorf("%w: %v instead of a challenge", ErrProtocol, f.Type())
	}
	if challenge.Version != wire.Version {
		return nil, fmt.Errorf("%w: control protocol %d there, %d here", wire.ErrVersion, challenge.Version, wire.Version)
	}
	return challenge, nil
}

// shake is the initiator's side of the handshake.
func (o *Out) shake(c net.Conn) (*wire.Welcome, error) {
	challenge, err := readChallenge(c)
	if err != nil {
		return nil, err
	}
	if !o.offered {
		err := o.session.guard("offers", func() (err error) { o.offers, err = o.handler.Offers(); return err })
		if err != nil {
			return nil, &finalError{fmt.Errorf("%w: our endpoints: %w", ErrHandler, err)}
		}
		o.offered = true
	}
	id := &o.session.node.cfg.Identity
	hello := &wire.Hello{Version: wire.Version, Engine: id.Engine, Target: o.to.Engine, Agent: id.Agent,
		Session: o.session.node.number.Add(1), After: o.after, Boot: id.Boot, Process: id.Process, Offers: o.offers}
	o.id.Store(hello.Session)
	_, _ = rand.Read(hello.Nonce[:]) // never fails
	if hello.Mac, err = wire.MacHello(o.to.Token, challenge.Nonce, hello); err != nil {
		return nil, &finalError{err}
	}
	var f wire.Frame
	begun := time.Now()
	if err = wire.WriteFrame(c, hello); err == nil {
		f, err = wire.ReadFrame(c, wire.HandshakeLimit)
	}
	if hungUp(err) {
		return nil, errBusy
	} else if err != nil {
		return nil, fmt.Errorf("hello: %w", timedOut(err, begun, noWord))
	}
	switch f := f.(type) {
	case *wire.Reject:
		return nil, rejected(o.to.Token, challenge.Nonce, hello.Nonce, f)
	case *wire.Welcome:
		mac, err := wire.MacWelcome(o.to.Token, challenge.Nonce, hello.Nonce, f)
		if err != nil || !mac.Equal(f.Mac) || f.Engine != o.to.Engine || f.Session != hello.Session || f.Version != wire.Version {
			return nil, fmt.Errorf("%w: its welcome does not prove that it is the engine that was meant", ErrProtocol)
		}
		return f, nil
	}
	return nil, fmt.Errorf("%w: %v instead of a welcome", ErrProtocol, f.Type())
}

// rejected is the error of a Reject, which says whether the engine that was meant has sent it.
func rejected(token wire.Token, challenge, asked wire.Nonce, f *wire.Reject) *RejectError {
	mac, err := wire.MacReject(token, challenge, asked, f)
	return &RejectError{Code: f.Code, Text: f.Text, Proved: err == nil && mac.Equal(f.Mac)}
}

// hungUp says that the other side closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// finalError ends a dial: no other address would change the outcome.
type finalError struct{ error }

func (e *finalError) Unwrap() error { return e.error }

func final(err error) bool {
	var f *finalError
	if errors.As(err, &f) || errors.Is(err, ErrClosed) {
		return true
	}
	var r *RejectError
	return errors.As(err, &r) && r.Proved && r.Code != wire.CodeBusy
}

// hint is a no that nobody has proved: anybody between the two, or at an address that was the peer's, can say it.
func hint(err error) bool {
	var r *RejectError
	if errors.As(err, &r) {
		return !r.Proved && r.Code != wire.CodeBusy
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, ErrProtocol) || errors.Is(err, wire.ErrVersion)
}

// passing says that another try soon may succeed: a hint, or what one packet of anybody's or a change of routes can cause.
func passing(err error) bool {
	return hint(err) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.ECONNRESET)
}

func busy(err error) bool {
	var r *RejectError
	return errors.Is(err, errBusy) || errors.As(err, &r) && r.Code == wire.CodeBusy
}

// failed is the error of a dial that led nowhere. A refusal counts more than silence: it comes from a live host.
func (o *Out) failed(tried failures) error {
	if tried.dead() {
		return dead(o.explain(tried))
	}
	return o.explain(tried)
}

// explain makes one error of what all addresses said.
func (o *Out) explain(tried failures) error {
	for _, f := range tried {
		if errors.Is(f.err, wire.ErrVersion) || errors.Is(f.err, ErrRejected) || errors.Is(f.err, ErrProtocol) || errors.Is(f.err, ErrHandler) {
			return fmt.Errorf("%s: %w", o.session.peer, tried) // these say what to do
		}
	}
	return fmt.Errorf("%w: %s: %w: check that it runs and that its metadata is current (option connect_timeout=%v)",
		ErrUnreachable, o.session.peer, tried, o.session.node.cfg.ConnectTimeout)
}

// failures is an error for each address.
type failures []failure

// dead says that the engine that was meant is gone: every address refuses or has another engine. One that cannot be reached may be where
// the peer is; one that refuses may be another host's, as private addresses are.
func (fs failures) dead() bool {
	for _, f := range fs {
		var r *RejectError
		switch {
		case errors.As(f.err, &r):
			if !elsewhere(r) && r.Code != wire.CodeToken {
				return false
			}
		case errors.Is(f.err, syscall.ECONNREFUSED), errors.Is(f.err, ErrProtocol), errors.Is(f.err, wire.ErrVersion):
		default:
			return false
		}
	}
	return len(fs) > 0
}

func (fs failures) has(a netip.AddrPort) bool {
	return slices.ContainsFunc(fs, func(f failure) bool { return f.addr == a })
}

func (fs failures) Error() string {
	texts := make([]string, len(fs))
	for i, f := range fs {
		texts[i] = fmt.Sprintf("%v: %v", f.addr, f.err)
	}
	return strings.Join(texts, "; ")
}

func (fs failures) Unwrap() []error {
	errs := make([]error, len(fs))
	for i, f := range fs {
		errs[i] = f.err
	}
	return errs
}

// reachable orders a target's control addresses: on the same host and network namespace loopback first, else no loopback.
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

// dialTCP connects. To a loopback address it goes from a loopback address.
func dialTCP(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{KeepAlive: -1}
	if ip := to.Addr(); ip.IsLoopback() {
		local := netip.IPv6Loopback()
		if ip.Is4() {
			local = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0))
	}
	return d.DialContext(ctx, "tcp", to.String()) // TCP_NODELAY is Go's default
}

// pause waits; false when ctx ends before.
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
