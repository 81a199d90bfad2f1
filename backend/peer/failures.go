package peer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"gorail/backend/wire"
)

// errBusy is for a target that closed the connection before its Welcome or Reject. The target has no descriptors
// left, or evicted the handshake. A dying target also closes the connection, but refuses the next try.
var errBusy = errors.New("closed the connection in the handshake: the process at this address is not a GORAIL engine, or is too busy")

// failure is the last error of one address.
type failure struct {
	addr netip.AddrPort
	err  error
}

// finalError ends a dial, because no other address would change the outcome.
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

// unprovedRefusal reports a refusal without proof. Anybody on the path, or at a former address of the peer, can send
// one.
func unprovedRefusal(err error) bool {
	var r *RejectError
	if errors.As(err, &r) {
		return !r.Proved && r.Code != wire.CodeBusy
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, ErrProtocol) || errors.Is(err, wire.ErrVersion)
}

// transient reports that another try may soon succeed: after an unproved refusal, or after an error that a single
// packet or a change of routes can cause.
func transient(err error) bool {
	return unprovedRefusal(err) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) || errors.Is(err, syscall.ECONNRESET)
}

// starvedError is a failure at a time at which this process got no CPU time: it says nothing about the peer.
type starvedError struct{ error }

func (e *starvedError) Unwrap() error { return e.error }

// starvedBy is how late a deadline fires at most on a host that works.
const starvedBy = 100 * time.Millisecond

// busy reports that the other side, or this one, was too busy. Another try may succeed at any time.
func busy(err error) bool {
	var r *RejectError
	var here *starvedError
	return errors.Is(err, errBusy) || errors.As(err, &here) || errors.As(err, &r) && r.Code == wire.CodeBusy
}

// accepted reports that an address took the connection, and its process said nothing, or too little in time: it may be
// stopped or starved.
func accepted(err error) bool {
	var t *timeoutError
	return errors.As(err, &t) && t.accepted
}

// failures has one error for each address.
type failures []failure

// dead reports that the intended engine is gone. Every address refuses connections, or is answered by another process:
// with another engine, token, version or protocol. An unreachable address may still be the peer's. A refusing address
// may belong to another host, because hosts of different networks use the same private addresses.
func (fs failures) dead() bool {
	for _, f := range fs {
		var r *RejectError
		switch {
		case errors.As(f.err, &r):
			if !otherEngine(r) && r.Code != wire.CodeToken {
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

// refuses reports whether an answer says that the peer's session is no longer behind an address. A Reject always
// counts. A refused connection counts only if the peer had hung up: while a link is down, another host on the default
// route may refuse.
func refuses(err error, hungUp bool) bool {
	var r *RejectError
	return unprovedRefusal(err) && (hungUp || errors.As(err, &r))
}

// gone reports that no address knows the session. Then no engine knows it any more.
func (fs failures) gone() bool {
	return !slices.ContainsFunc(fs, func(f failure) bool {
		var r *RejectError
		return errors.As(f.err, &r) && !otherEngine(r)
	})
}

// otherEngine reports whether a Reject comes from an engine that is not the peer.
func otherEngine(r *RejectError) bool { return r.Code == wire.CodeEngine || r.Code == wire.CodeVersion }

// saysGone reports that the engine itself says that it ends.
func saysGone(err error) bool {
	var r *RejectError
	return errors.As(err, &r) && r.Proved && r.Code == wire.CodeGone
}

// rejectedForGood reports that no address will resume the session: the target has proved its Reject, or this side has
// failed for good.
func rejectedForGood(err error) bool {
	var f *finalError
	var r *RejectError
	return errors.As(err, &f) || errors.As(err, &r) && r.Proved && r.Code != wire.CodeBusy
}
