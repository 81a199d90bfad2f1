package peer

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"sync/atomic"
	"time"

	"gorail/backend/wire"
)

// frameHandler handles a stream's numbered frames, one at a time and in order. An error ends the stream.
type frameHandler func(f wire.Frame) error

// reconnectFunc finds another connection for a stream, until lockedStream.Resume gets one or the stream ends. It starts a
// reconnect, or makes a running one urgent. An urgent reconnect replaces the connection in use even if that
// connection works, preferably by one that does not leave from avoid. It is called with the stream's lock held. It
// must not wait, and must not call the stream.
type reconnectFunc func(urgent bool, avoid netip.Addr)

// resumedFunc is called in the stream's goroutine when the stream has got another connection, between these addresses, before any of its frames is handled.
type resumedFunc func(own, peer netip.Addr)

// streamEnv is the state that all streams of one engine share. The fields above Gone are constant.
type streamEnv struct {
	Ctx         context.Context // its end ends all waits of the streams
	Log         *slog.Logger
	PeerTimeout time.Duration // a stream is lost if its peer shows no sign of life for this long, on any path
	Heartbeat   time.Duration // base of the intervals of pings and of reconnects over other paths
	QueueLimit  int           // bound, in bytes, of the frames of one stream that wait to be sent or acknowledged
	Spawn       func(f func()) bool
	Shed        func()                                      // called when Held may have grown; it must not wait
	Heard       func()                                      // called for each frame that comes; it must not wait
	Opening     func() bool                                 // connections are in a handshake that goes on; nil: never
	Acks        func(c net.Conn, recent time.Duration) bool // Acknowledges, or a test's function

	Gone  atomic.Bool  // set when the engine ends: each Bye says so
	Held  atomic.Int64 // bytes of frames of the inbound streams
	Count Counters
}

// Counters of all streams. They never decrease.
type Counters struct {
	Resumed   atomic.Uint64 // connections that replaced another one
	Resent    atomic.Uint64 // frames that were sent again after such a replacement
	Overflows atomic.Uint64 // streams that ended because a limit of queued frames was exceeded

	FramesSent, FramesReceived, BytesSent atomic.Uint64
}

// Guard calls a handler and turns a panic into an error, because a panic would end the host process.
func (e *streamEnv) Guard(peer, what string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			e.Log.Error("panic in a control handler", "peer", peer, "in", what, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %s: panic in %s: %v", ErrHandler, peer, what, p)
		}
	}()
	return f()
}
