package nixlapi

import (
	"errors"
	"fmt"
)

// Status is nixl_capi_status_t. NIXL's C API maps most of the agent's errors to ErrBackend. Use the Python API where
// the exact status matters.
type Status int32

// The statuses of the C API, and our own status for a function missing in the library.
const (
	Success         Status = 0
	InProgress      Status = 1
	ErrInvalidParam Status = -1
	ErrBackend      Status = -2
	ErrInvalidState Status = -3
	ErrException    Status = -4
	ErrNoTelemetry  Status = -5
	ErrNotFound     Status = -6 // wheels before 1.5 return ErrBackend
	ErrMissing      Status = -1000
)

var statusNames = map[Status]string{
	Success: "success", InProgress: "in progress", ErrInvalidParam: "invalid parameter",
	ErrBackend: "backend error", ErrInvalidState: "invalid state", ErrException: "exception",
	ErrNoTelemetry: "no telemetry", ErrNotFound: "not found",
	ErrMissing: "not in this libnixl_capi.so",
}

func (s Status) String() string {
	if n, ok := statusNames[s]; ok {
		return n
	}
	return fmt.Sprintf("status %d", int32(s))
}

// Failed reports whether s is an error: neither Success nor InProgress.
func (s Status) Failed() bool { return s < 0 }

// Error is a failed call of the C API. Its fields are exported for gob.
type Error struct {
	Call   string // without the nixl_capi_ prefix
	Status Status
}

func (e *Error) Error() string { return fmt.Sprintf("nixl_capi_%s: %s", e.Call, e.Status) }

// Err returns an error for a failed status of call, else nil.
func (s Status) Err(call string) error {
	if !s.Failed() {
		return nil
	}
	return &Error{Call: call, Status: s}
}

// StatusOf returns the status in an error of this package; Success for nil.
func StatusOf(err error) Status {
	var e *Error
	switch {
	case err == nil:
		return Success
	case errors.As(err, &e):
		return e.Status
	}
	return ErrException
}
