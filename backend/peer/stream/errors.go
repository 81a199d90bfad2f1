package stream

import (
	"errors"
	"io"
	"syscall"

	"gorail/backend/wire"
)

// Why a stream ended. What it ends with wraps one of these with the peer, the address and what to do.
var (
	ErrClosed     = errors.New("session closed by this side")
	ErrPeerClosed = errors.New("peer closed")
	ErrDropped    = errors.New("connection to the peer broke")
	ErrSilent     = errors.New("peer is silent")
	ErrProtocol   = errors.New("bad frame on the control channel")
	ErrOverflow   = errors.New("peer does not read its control channel")
	ErrHandler    = errors.New("control handler failed")
)

// ErrDead marks the errors of a peer that will not come back: its process has ended, its host refuses, its engine said goodbye.
// A session that ended for another reason may be followed by another with the same peer.
var ErrDead = errors.New("peer is dead")

// deadError adds ErrDead to an error, and leaves its text alone.
type deadError struct{ error }

func (e *deadError) Unwrap() error        { return e.error }
func (e *deadError) Is(target error) bool { return target == ErrDead }

// Dead marks an error as ErrDead does.
func Dead(err error) error { return &deadError{err} }

// Why a connection was taken from a stream that lives on.
var (
	errReplaced = errors.New("replaced by another connection")
	errUneasy   = errors.New("silent, and another path answers")
)

// HungUp says that the other side closed the connection.
func HungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// dropped says that the other side's host closed the connection, so the path to it works.
func dropped(err error) bool { return HungUp(err) || errors.Is(err, io.ErrUnexpectedEOF) }

// Malformed says that an error is one of the decoder.
func Malformed(err error) bool {
	return errors.Is(err, wire.ErrFormat) || errors.Is(err, wire.ErrKind) || errors.Is(err, wire.ErrLimit) || errors.Is(err, wire.ErrVersion)
}

// Clip cuts a text to what fits a frame.
func Clip(text string) string {
	if len(text) > wire.MaxText {
		return text[:wire.MaxText]
	}
	return text
}
