package ofi

import "syscall"

// Error is what libfabric returned. It unwraps to the errno, for errors.Is.
type Error struct {
	Call  string // which call; "": the one that lists devices
	Errno int    // positive
	text  string
}

func (e *Error) Error() string {
	if e.Call == "" {
		return e.text
	}
	return e.Call + ": " + e.text
}

// Unwrap gives the errno, or nil for libfabric's own codes.
func (e *Error) Unwrap() error {
	if e.Errno >= 256 {
		return nil
	}
	return syscall.Errno(e.Errno)
}
