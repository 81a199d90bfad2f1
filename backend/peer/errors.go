package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"gorail/backend/host"
	"gorail/backend/wire"
)

// The reasons for a session's failure to begin, beside those for the end of a stream. The errors of Lost and Gone wrap one of them
// with the peer, the address and what to do.
var (
	ErrUnreachable = errors.New("peer cannot be reached")
	ErrRejected    = errors.New("peer refused the connection")
	ErrListen      = errors.New("control channel cannot listen")
)

// RejectError is a refused handshake. A TargetHandler returns one from Hello to choose the code. An initiator finds
// it with errors.As in the error of Lost.
type RejectError struct {
	Code   wire.Code
	Text   string
	Proved bool // the target, which has the token, sent the Reject; else anybody may have sent it
}

// Error returns the target's text.
func (e *RejectError) Error() string { return fmt.Sprintf("%v: %s", ErrRejected, e.Text) }

// Is makes errors.Is(err, ErrRejected) hold.
func (e *RejectError) Is(target error) bool { return target == ErrRejected }

// timeoutError is the error of an answer that did not come in time.
type timeoutError struct {
	text     string
	accepted bool // the other side's kernel had accepted the connection
}

func (e *timeoutError) Error() string { return e.text }

// Is makes the error match the deadline errors.
func (e *timeoutError) Is(target error) bool {
	return target == os.ErrDeadlineExceeded || target == context.DeadlineExceeded
}

// timedOut turns a deadline's error into a timeoutError that says what did not come since begun. Package net names
// our own end of the connection first, and then only says "i/o timeout". Of other net errors it keeps the cause
// without the addresses, because failure has the peer's address.
func timedOut(err error, begun time.Time, what string) error {
	var op *net.OpError
	var already *timeoutError
	if errors.As(err, &already) {
		return err
	}
	if errors.As(err, &op) {
		err = op.Err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return &timeoutError{fmt.Sprintf("%s within %v", what, time.Since(begun).Round(time.Millisecond)), what != noConnection}
	}
	return err
}

// unreached reports that nothing has answered a request for a connection in time.
func unreached(err error) bool {
	var late *timeoutError
	return errors.As(err, &late) && !late.accepted
}

// withPackets adds to a timeout which packets of the connection did not arrive, if its kernel knows.
func withPackets(err error, c net.Conn) error {
	var late *timeoutError
	if !errors.As(err, &late) {
		return err
	}
	info, ok := host.TCPInfo(c)
	if !ok {
		return err
	}
	between := fmt.Sprintf("%s and %s", c.LocalAddr(), c.RemoteAddr())
	lost := host.LostPackets(&info, between, false)
	if lost == "" && info.Bytes_received > 0 { // its kernel alone knows what it sends in vain
		lost = fmt.Sprintf("its first %d bytes have arrived: if its process runs, check the MTU between %s", info.Bytes_received, between)
	}
	if lost == "" {
		return err
	}
	return &timeoutError{late.text + "; " + lost, late.accepted}
}

// What a target failed to do in time. A kernel accepts connections for a process that does not run.
const (
	noConnection = "no answer to a connection request"
	noFrame      = "takes connections, but its process has said nothing (it may be stopped or starved of CPU time)"
)

// errNotTried is the error of an address that was not tried.
var errNotTried = &timeoutError{text: "not tried: no time left (option connect_timeout)"}

// label returns an engine's name for errors and logs.
func label(agent string, e wire.EngineID) string {
	const most = 64
	if len(agent) > most {
		agent = agent[:most] + "..."
	}
	return fmt.Sprintf("%q (engine %s)", agent, e.String()[:8])
}
