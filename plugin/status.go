package main

// #include "../backend/include/gr_nixl.h"
import "C"

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

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
		level := levelOf(code)
		if level == slog.LevelInfo && refusals.seen(err.Error(), time.Now()) {
			level = slog.LevelDebug
		}
		slog.Log(context.Background(), level, err.Error(), "call", call, "status", code.String())
		return int32(code)
	}
	return rc
}

// tellAgain is how often calls that are refused alike are logged.
const tellAgain = time.Minute

// refusals are those of peers that are gone: an application may go on posting to one.
var refusals repeats

// repeats knows texts that were logged lately. Safe for concurrent use.
type repeats struct {
	mu   sync.Mutex
	told map[string]time.Time
}

// seen says whether a text was logged within tellAgain; if not, it is now.
func (r *repeats) seen(text string, now time.Time) bool {
	const most = 256 // texts that are kept
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.told[text]; ok && now.Sub(at) < tellAgain {
		return true
	}
	if r.told == nil || len(r.told) >= most {
		r.told = map[string]time.Time{}
	}
	r.told[text] = now
	return false
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

// Package status has the codes as the C header has them.
var _ = [...][0]struct{}{
	[C.GR_SUCCESS - status.Success]struct{}{}, [C.GR_IN_PROG - status.InProg]struct{}{}, [C.GR_ERR_NOT_POSTED - status.ErrNotPosted]struct{}{},
	[C.GR_ERR_INVALID_PARAM - status.ErrInvalidParam]struct{}{}, [C.GR_ERR_BACKEND - status.ErrBackend]struct{}{},
	[C.GR_ERR_NOT_FOUND - status.ErrNotFound]struct{}{}, [C.GR_ERR_MISMATCH - status.ErrMismatch]struct{}{},
	[C.GR_ERR_NOT_ALLOWED - status.ErrNotAllowed]struct{}{}, [C.GR_ERR_REPOST_ACTIVE - status.ErrRepostActive]struct{}{},
	[C.GR_ERR_UNKNOWN - status.ErrUnknown]struct{}{}, [C.GR_ERR_NOT_SUPPORTED - status.ErrNotSupported]struct{}{},
	[C.GR_ERR_REMOTE_DISCONNECT - status.ErrRemoteDisconnect]struct{}{}, [C.GR_ERR_CANCELED - status.ErrCanceled]struct{}{},
}
