package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"gorail/backend/peer/stream"
	"gorail/backend/wire"
)

// Why a session ended or never began. What Lost and Gone get wraps one of these with the peer, the address and what to do.
var (
	ErrClosed      = stream.ErrClosed
	ErrPeerClosed  = stream.ErrPeerClosed
	ErrDropped     = stream.ErrDropped
	ErrSilent      = stream.ErrSilent
	ErrProtocol    = stream.ErrProtocol
	ErrOverflow    = stream.ErrOverflow
	ErrUnreachable = errors.New("peer cannot be reached")
	ErrRejected    = errors.New("peer refused the connection")
	ErrHandler     = stream.ErrHandler
	ErrListen      = errors.New("control channel cannot listen")
)

// ErrDead marks the errors of a peer that will not come back: its process has ended, its host refuses, its engine said goodbye.
// A session that ended for another reason may be followed by another with the same peer.
var ErrDead = stream.ErrDead

// State of a session; the package comment has the diagram.
type State = stream.State

// The states.
const (
	Dialing = stream.Dialing // looking for an address that answers
	Hello   = stream.Hello   // inHandshake hands
	Ready   = stream.Ready   // serving, though its connection may just be replaced by another
	Lost    = stream.Lost    // ended by the peer or by a failure
	Closed  = stream.Closed  // ended by this side
)

// RejectError is a refused handshake. A TargetHandler returns one from Hello to choose the code; an initiator finds it with
// errors.As in the error of Lost.
type RejectError struct {
	Code   wire.Code
	Text   string
	Proved bool // the target has sent it, which holds the token; else anybody may have, and it is a hint
}

// Error is the target's text.
func (e *RejectError) Error() string { return fmt.Sprintf("%v: %s", ErrRejected, e.Text) }

// Is makes errors.Is(err, ErrRejected) hold.
func (e *RejectError) Is(target error) bool { return target == ErrRejected }

// timeoutError is an answer that did not come in time.
type timeoutError struct{ text string }

func (e *timeoutError) Error() string { return e.text }

// Is makes it the error of a deadline.
func (e *timeoutError) Is(target error) bool {
	return target == os.ErrDeadlineExceeded || target == context.DeadlineExceeded
}

// timedOut says what did not come since begun, where that is the error. Package net names our own end of the connection first, and says no
// more than "i/o timeout"; its other errors go without their ends, too: failure has the peer's.
func timedOut(err error, begun time.Time, what string) error {
	var op *net.OpError
	var said *timeoutError
	if errors.As(err, &said) {
		return err
	}
	if errors.As(err, &op) {
		err = op.Err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return &timeoutError{fmt.Sprintf("%s within %v", what, time.Since(begun).Round(time.Millisecond))}
	}
	return err
}

// What a target did not do in time. A kernel takes connections for a process that does not run.
const (
	noConnection = "no answer to a connection request"
	noWord       = "takes connections, but its process has said nothing (it may be stopped or starved of CPU time)"
)

// errNoTime is of an address that was not tried.
var errNoTime = &timeoutError{"not tried: the time was over"}

// label names an engine in errors and logs.
func label(agent string, e wire.EngineID) string {
	const most = 64
	if len(agent) > most {
		agent = agent[:most] + "..."
	}
	return fmt.Sprintf("%q (engine %s)", agent, e.String()[:8])
}
