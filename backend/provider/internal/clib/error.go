package clib

import (
	"errors"
	"syscall"
)

// CallError is a failed call. It unwraps to the errno, for errors.Is.
type CallError struct {
	Call  string // C name of the call; "" if Text says everything
	Errno syscall.Errno
	Text  string // the library's text; "": use the text of the errno
}

func (e *CallError) Error() string {
	text := e.Text
	if text == "" {
		text = e.Errno.Error()
	}
	if e.Call == "" {
		return text
	}
	return e.Call + ": " + text
}

// Unwrap returns the errno.
func (e *CallError) Unwrap() error { return e.Errno }

// Failed returns the error of a call that sets errno. err is the errno as cgo returns it.
func Failed(call string, err error) error {
	errno := syscall.EIO
	if e, ok := errors.AsType[syscall.Errno](err); ok && e > 0 {
		errno = e
	}
	return &CallError{Call: call, Errno: errno}
}

// Returned returns the error of a call that returns 0, or an errno of either sign. For -1 the errno is in err, if the
// call set errno.
func Returned(call string, rc int, err error) error {
	switch {
	case rc == 0:
		return nil
	case rc > 0:
		return &CallError{Call: call, Errno: syscall.Errno(rc)}
	case rc < -1:
		return &CallError{Call: call, Errno: syscall.Errno(-rc)}
	}
	return Failed(call, err)
}

// As returns err as a CallError. Any other error becomes an EIO with the text of err as Call.
func As(err error) *CallError {
	if e, ok := errors.AsType[*CallError](err); ok {
		return e
	}
	return &CallError{Call: err.Error(), Errno: syscall.EIO}
}
