package errcode

// A Status has the values of nixl_status_t. StatusOf turns every error that reaches the plugin boundary into one of them.

import (
	"errors"
	"fmt"
)

// Status is a nixl_status_t.
type Status int32

// The values of nixl_status_t.
const (
	InProg              Status = 1
	Success             Status = 0
	ErrNotPosted        Status = -1
	ErrInvalidParam     Status = -2
	ErrBackend          Status = -3
	ErrNotFound         Status = -4
	ErrMismatch         Status = -5
	ErrNotAllowed       Status = -6
	ErrRepostActive     Status = -7
	ErrUnknown          Status = -8
	ErrNotSupported     Status = -9
	ErrRemoteDisconnect Status = -10
	ErrCanceled         Status = -11
)

// Info is one row of the table of codes.
type Info struct {
	Code Status
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
func (c Status) String() string {
	for _, i := range Table {
		if i.Code == c {
			return i.Name
		}
	}
	return fmt.Sprintf("nixl_status_t(%d)", int32(c))
}

// StatusOf returns the code of an error: Success for nil, the outermost code in its chain, ErrBackend if the chain has none.
func StatusOf(err error) Status {
	if err == nil {
		return Success
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.code.Status
	}
	return ErrBackend
}
