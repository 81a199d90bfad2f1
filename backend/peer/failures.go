package peer

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"gorail/backend/wire"
)

// errBusy marks a target that closed the connection before its Welcome or Reject: it is out of descriptors, limits our
// address, or made room for others. Or it dies, and the next try is refused.
var errBusy = errors.New("closed the connection in the handshake: it is not a GORAIL engine, or too busy")

// failure is how one address failed.
type failure struct {
	addr netip.AddrPort
	err  error
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

// refuses says that, by its answer, the peer's session doesn't live behind an address any more. A Reject counts always; a
// refused connection only when the peer had hung up: while a link is down, whoever the default route leads to may refuse.
func refuses(err error, hungUp bool) bool {
	var r *RejectError
	return hint(err) && (hungUp || errors.As(err, &r))
}

// gone says that no address speaks of a session: there is no engine any more that knows it.
func (fs failures) gone() bool {
	return !slices.ContainsFunc(fs, func(f failure) bool {
		var r *RejectError
		return errors.As(f.err, &r) && !elsewhere(r)
	})
}

// elsewhere is the answer of an engine that is not the peer.
func elsewhere(r *RejectError) bool { return r.Code == wire.CodeEngine || r.Code == wire.CodeVersion }

// rejectedForGood says that no address will resume the session: its target has proved that it said so, or this side has.
func rejectedForGood(err error) bool {
	var f *finalError
	var r *RejectError
	return errors.As(err, &f) || errors.As(err, &r) && r.Proved && r.Code != wire.CodeBusy
}
