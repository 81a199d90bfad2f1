package main

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"

	"gorail/backend/status"
)

// answer runs one exported call and gives its nixl_status_t. No panic leaves it: a panic is logged with its stack and
// becomes NIXL_ERR_BACKEND. The error's text ends here, as the boundary carries only a number, so it is logged.
func answer(call string, f func() error) int32 {
	return answerStatus(call, func() (int32, error) { return 0, f() })
}

// answerStatus is answer for a call with more than one good outcome (done, in progress).
func answerStatus(call string, f func() (int32, error)) (rc int32) {
	defer func() {
		if p := recover(); p != nil {
			rc = int32(status.ErrBackend)
			slog.Error("panic in the plugin", "call", call, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	rc, err := f()
	if err != nil {
		code := status.Of(err)
		slog.Log(context.Background(), levelOf(code), err.Error(), "call", call, "status", code.String())
		return int32(code)
	}
	return rc
}

// levelOf says how loud an error is: what an agent meets on normal paths (a peer not loaded yet, a peer that left) is
// not.
func levelOf(code status.Code) slog.Level {
	switch code {
	case status.ErrNotFound, status.ErrNotSupported, status.ErrRepostActive, status.ErrCanceled:
		return slog.LevelDebug
	case status.ErrRemoteDisconnect:
		return slog.LevelInfo
	}
	return slog.LevelError
}
