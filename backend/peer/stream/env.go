package stream

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

// Handler takes in a stream's numbered frames, one at a time and in order. An error ends the stream.
type Handler interface {
	Handle(f wire.Frame) error
}

// Reconnector looks for another connection of a stream, until Locked.Resume gives it one or it ends. Reconnect begins to, or makes what goes on urgent: then the
// connection in use is to be replaced though it works, and by one that does not leave from avoid, if there is one. It is called with the
// stream's lock held, must not wait, and may call nothing of the stream's.
type Reconnector interface {
	Reconnect(urgent bool, avoid netip.Addr)
}

// Env is what the streams of one engine share. All but the counters is constant.
type Env struct {
	Ctx         context.Context // ends all streams' waiting
	Log         *slog.Logger
	PeerTimeout time.Duration // a stream whose peer shows no sign of life for so long, on any path, is lost
	Heartbeat   time.Duration // what pings and the search for other paths are timed by
	QueueLimit  int           // bytes that may wait to be sent or acknowledged on one stream
	Spawn       func(f func()) bool
	Shed        func() // is told that Held has grown; it may not wait
	Acks        func(c net.Conn, recent time.Duration) bool

	Gone  atomic.Bool  // goodbyes say that the engine ends
	Held  atomic.Int64 // bytes of frames of the streams that we serve
	Count Counters
}

// Counters of all streams. They only grow.
type Counters struct {
	Resumed   atomic.Uint64 // connections that took the place of another
	Resent    atomic.Uint64 // frames that were sent again for it
	Overflows atomic.Uint64 // streams that ended because their queue was full

	FramesSent, FramesReceived, BytesSent atomic.Uint64
}

// Guard calls a handler and makes an error of a panic: a host process must not die of it.
func (e *Env) Guard(peer, what string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			e.Log.Error("panic in a control handler", "peer", peer, "in", what, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%w: %s: panic in %s: %v", ErrHandler, peer, what, p)
		}
	}()
	return f()
}
