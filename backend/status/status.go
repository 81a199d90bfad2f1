// Package status has the values of nixl_status_t. Of turns every error that reaches the plugin boundary into one of them.
// Package errcode makes the errors that carry one.
package status

import (
	"errors"
	"fmt"
)

// Code is a nixl_status_t.
type Code int32

// The values of nixl_status_t.
const (
	InProg              Code = 1
	Success             Code = 0
	ErrNotPosted        Code = -1
	ErrInvalidParam     Code = -2
	ErrBackend          Code = -3
	ErrNotFound         Code = -4
	ErrMismatch         Code = -5
	ErrNotAllowed       Code = -6
	ErrRepostActive     Code = -7
	ErrUnknown          Code = -8
	ErrNotSupported     Code = -9
	ErrRemoteDisconnect Code = -10
	ErrCanceled         Code = -11
)

// Info is one row of the table of codes.
type Info struct {
	Code Code
	Name string // NIXL's name
	Doc  string // its meaning when GORAIL returns it
}

// Table lists all codes, success first.
var Table = []Info{
	{Success, "NIXL_SUCCESS", "done"},
	{InProg, "NIXL_IN_PROG", "posted and not finished"},
	{ErrNotPosted, "NIXL_ERR_NOT_POSTED", "the request was never posted"},
	{ErrInvalidParam, "NIXL_ERR_INVALID_PARAM", "a malformed argument: lists of unequal length, a range that wraps, a bad option value"},
	{ErrBackend, "NIXL_ERR_BACKEND", "the operation failed here: a device, a limit, a deadline, or a call in a forked child"},
	{ErrNotFound, "NIXL_ERR_NOT_FOUND", "unknown peer, region or request"},
	{ErrMismatch, "NIXL_ERR_MISMATCH", "the peer's blob is damaged or of an incompatible version"},
	{ErrNotAllowed, "NIXL_ERR_NOT_ALLOWED", "a second, different value for something already known, or a transfer that the peer's `remote_access` does not allow"},
	{ErrRepostActive, "NIXL_ERR_REPOST_ACTIVE", "the request is still in flight"},
	{ErrUnknown, "NIXL_ERR_UNKNOWN", "not used by GORAIL"},
	{ErrNotSupported, "NIXL_ERR_NOT_SUPPORTED", "this backend does not offer that"},
	{ErrRemoteDisconnect, "NIXL_ERR_REMOTE_DISCONNECT", "the peer's process or host is gone; the agent forgets the peer"},
	{ErrCanceled, "NIXL_ERR_CANCELED", "the request was released before it ended"},
}

// String returns NIXL's name of the code.
func (c Code) String() string {
	for _, i := range Table {
		if i.Code == c {
			return i.Name
		}
	}
	return fmt.Sprintf("nixl_status_t(%d)", int32(c))
}

// Carrier is an error with a code. Package errcode makes them.
type Carrier interface {
	error
	Status() Code
}

// Of returns the code of an error: Success for nil, the outermost code in its chain, ErrBackend if the chain has none.
func Of(err error) Code {
	if err == nil {
		return Success
	}
	var e Carrier
	if errors.As(err, &e) {
		return e.Status()
	}
	return ErrBackend
}
