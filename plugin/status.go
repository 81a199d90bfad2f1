package plugin

// #include "../backend/include/gr_nixl.h"
import "C"

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"gorail/backend/errcode"
)

// answer runs one exported call and returns its nixl_status_t. Panics are logged with their stack and become
// NIXL_ERR_BACKEND. An error's text is logged here, because the boundary carries only a number.
func answer(call string, f func() error) int32 {
	return answerStatus(call, func() (int32, error) { return 0, f() })
}

// answerStatus is answer for a call with two successful results (done, in progress).
func answerStatus(call string, f func() (int32, error)) (rc int32) {
	defer func() {
		if p := recover(); p != nil {
			rc = int32(errcode.ErrBackend)
			slog.Error("panic in the plugin", "call", call, "panic", fmt.Sprint(p), "stack", string(debug.Stack()), errcode.Key, errcode.Panic)
		}
	}()
	rc, err := f()
	if err != nil {
		code, id := errcode.StatusOf(err), errcode.Of(err)
		level := levelOf(code)
		if level == slog.LevelInfo && refusals.seen(err.Error(), time.Now()) {
			level = slog.LevelDebug
		}
		slog.Log(context.Background(), level, err.Error(), "call", call, "status", code.String(), errcode.Key, id)
		return int32(code)
	}
	return rc
}

// answerOnce logs an error of a call and returns its status. A program may repeat the call all the time: it gets a line a minute.
func answerOnce(call string, err error) int32 {
	if refusals.seen(call+": "+err.Error(), time.Now()) {
		return int32(errcode.StatusOf(err))
	}
	return answer(call, func() error { return err })
}

// repeatAfter is the minimum time between two log lines for the same refusal.
const repeatAfter = time.Minute

// refusals tracks calls refused because a peer is gone: an application may keep posting to such a peer.
var refusals repeats

// repeats tracks recently logged texts. Safe for concurrent use.
type repeats struct {
	mu     sync.Mutex
	logged map[string]time.Time
}

// seen reports whether a text was logged within repeatAfter. Otherwise it records the text as logged now.
func (r *repeats) seen(text string, now time.Time) bool {
	const most = 256 // texts to keep
	r.mu.Lock()
	defer r.mu.Unlock()
	if at, ok := r.logged[text]; ok && now.Sub(at) < repeatAfter {
		return true
	}
	if r.logged == nil || len(r.logged) >= most {
		r.logged = map[string]time.Time{}
	}
	r.logged[text] = now
	return false
}

// levelOf returns the log level of an error. Errors that an agent meets in normal operation (a peer not loaded yet, a
// peer that left) are not logged as errors.
func levelOf(code errcode.Status) slog.Level {
	switch code {
	case errcode.ErrNotFound, errcode.ErrNotSupported, errcode.ErrRepostActive, errcode.ErrCanceled:
		return slog.LevelDebug
	case errcode.ErrRemoteDisconnect:
		return slog.LevelInfo
	}
	return slog.LevelError
}

// The codes of package status equal those of the C header.
var _ = [...][0]struct{}{
	[C.GR_SUCCESS - errcode.Success]struct{}{}, [C.GR_IN_PROG - errcode.InProg]struct{}{}, [C.GR_ERR_NOT_POSTED - errcode.ErrNotPosted]struct{}{},
	[C.GR_ERR_INVALID_PARAM - errcode.ErrInvalidParam]struct{}{}, [C.GR_ERR_BACKEND - errcode.ErrBackend]struct{}{},
	[C.GR_ERR_NOT_FOUND - errcode.ErrNotFound]struct{}{}, [C.GR_ERR_MISMATCH - errcode.ErrMismatch]struct{}{},
	[C.GR_ERR_NOT_ALLOWED - errcode.ErrNotAllowed]struct{}{}, [C.GR_ERR_REPOST_ACTIVE - errcode.ErrRepostActive]struct{}{},
	[C.GR_ERR_UNKNOWN - errcode.ErrUnknown]struct{}{}, [C.GR_ERR_NOT_SUPPORTED - errcode.ErrNotSupported]struct{}{},
	[C.GR_ERR_REMOTE_DISCONNECT - errcode.ErrRemoteDisconnect]struct{}{}, [C.GR_ERR_CANCELED - errcode.ErrCanceled]struct{}{},
}
