package clib

import (
	"errors"
	"syscall"
)

// CallError is a call that failed. It unwraps to the errno, for errors.Is.
type CallError struct {
	Call  string // its name in C; "" where Text says it all
	Errno syscall.Errno
	Text  string // the library's own; "": that of the errno
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

// Unwrap gives the errno.
func (e *CallError) Unwrap() error { return e.Errno }

// Failed is the error of a call that sets errno; err is what cgo has of that.
func Failed(call string, err error) error {
	errno := syscall.EIO
	if e, ok := errors.AsType[syscall.Errno](err); ok && e > 0 {
		errno = e
	}
	return &CallError{Call: call, Errno: errno}
}

// Returned is the error of a call that returns 0, or an errno of either sign. After -1 errno has it, if the call has set it.
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

// As is err as a CallError; one of something else is an EIO of that.
func As(err error) *CallError {
	if e, ok := errors.AsType[*CallError](err); ok {
		return e
	}
	return &CallError{Call: err.Error(), Errno: syscall.EIO}
}
