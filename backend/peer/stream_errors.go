package peer

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"gorail/backend/wire"
)

// The reasons for the end of a stream. A stream's error wraps one of them with the peer, the address and what to do.
var (
	ErrClosed     = errors.New("session closed by this side")
	ErrPeerClosed = errors.New("peer closed")
	ErrDropped    = errors.New("connection to the peer broke")
	ErrSilent     = errors.New("peer is silent")
	ErrProtocol   = errors.New("bad frame on the control channel")
	ErrOverflow   = errors.New("peer does not read its control channel")
	ErrRecalled   = errors.New("another identity needs the place")
	ErrHandler    = errors.New("control handler failed")
)

// ErrDead marks the errors of a peer that will not come back: its process has ended, its host refuses connections, or
// its engine said goodbye. After another error, a new session with the same peer may succeed.
var ErrDead = errors.New("peer is dead")

// deadError adds ErrDead to an error and keeps the error's text.
type deadError struct{ error }

func (e *deadError) Unwrap() error        { return e.error }
func (e *deadError) Is(target error) bool { return target == ErrDead }

// dead marks an error with ErrDead.
func dead(err error) error { return &deadError{err} }

// The reasons for taking the connection from a stream that stays alive.
var (
	errReplaced  = errors.New("replaced by another connection")
	errSuspected = errors.New("silent or suspected, and another path answers")
	errNoAnswer  = fmt.Errorf("no answer to a resume: %w", io.EOF) // of the peer's host, as at the end of its process
)

// hungUp reports whether an error says that the other side closed the connection.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// dropped reports whether an error says that the other side's host closed the connection. The path to that host then
// works.
func dropped(err error) bool { return hungUp(err) || errors.Is(err, io.ErrUnexpectedEOF) }

// malformed reports whether an error is one of the decoder.
func malformed(err error) bool {
	return errors.Is(err, wire.ErrFormat) || errors.Is(err, wire.ErrKind) || errors.Is(err, wire.ErrLimit) || errors.Is(err, wire.ErrVersion)
}

// clipText shortens a text to the length that a frame may have.
func clipText(text string) string {
	if len(text) > wire.MaxText {
		return text[:wire.MaxText]
	}
	return text
}
