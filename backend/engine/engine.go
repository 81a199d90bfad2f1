// Package engine connects the layers: one method per call of the plugin API, and the lifetimes of rails, regions,
// sessions and transfers. All methods may be called from any thread at any time. Only Release and Deregister wait for a
// peer. docs/architecture.md has the order of packages and of their locks.
//
// # Goroutines
//
// None of them spins. Only those marked with a star can hold a thread:
//
//   - the control channel's: see package peer
//   - events; deadlines; the kernel's link events: one each
//   - events of a rail that reports its own, joining of a late rail: one for each such rail
//   - tcp rail: accept: one
//   - tcp rail: opening, or dialing: one for each that is in progress
//   - shared-memory rail: accepts endpoints (handshake), and descriptor clients (descriptors): one each
//   - shared-memory rail: handshake; descriptor client: one for each that is in progress; one for each that is
//     connected
//   - shared-memory rail: maps GPU memory: one, and one for each mapping whose owner has sent only a part
//   - shared-memory rail: closes refused connections * (ipc/listener.go drop, before Linux 6.16): 16 at most
//   - staged transfers of ours (staging/chunk.go): 16 at most a transfer
//   - staged transfers of a peer (staging/server.go): a request for bounce buffers; a copy: one each; 16 copies at
//     most for each set of bounce buffers
//   - preparing 100,000 descriptors and more * (transfer/plan_share.go): four at most a call, and fewer than processors; they
//     end with the call, or find nothing to do later
//   - the log * (logqueue), the file of stats_file *: one each, while there is something to write
//
// A close ends those of a shared-memory rail. The goroutine of events and the one of deadlines only hand over. Each
// peer has a queue of its own (core/serial.go), so that a fence that waits for one peer holds up no other. A
// goroutine of a staged transfer waits for copies: it polls for 200 us, then naps (staging/copy.go). For locks see "The
// order of packages" above, and core/base.h.
package engine

import (
	"context"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/limits"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/session"
	"gorail/backend/staging"
	"gorail/backend/stats"
	"gorail/backend/topo"
	"gorail/backend/transfer"
	"gorail/backend/trust"
	"gorail/backend/wire"
)

// Config is the input of New.
type Config struct {
	Agent    string
	Version  string // GORAIL's, for the log
	Options  option.Options
	Provider provider.Provider
	Log      *slog.Logger

	nets func() []topo.Interface // nil: ask the kernel
	sys  fs.FS                   // nil: /sys
}

// Engine is one backend instance of one agent.
type Engine struct {
	name string
	opt  option.Options
	log  *slog.Logger
	life core.Lifetime
	core *core.Core
	ev   *core.Events
	self

	rails      *rails.Set
	sharing    *sharing // nil: it takes the devices that all take
	regions    *region.Registry
	links      *session.Set
	transfers  *transfer.Table
	staging    *staging.Side
	initiators *session.Initiators
	targets    *session.Targets
	node       *peer.Node
	shown

	sweeper *sweeper
	watcher *watcher
	stir    *stir
}

// shown is what only those who look at the engine need.
type shown struct {
	version string
	started time.Time
	tap     *stats.Tap
	socket  *stats.Server // nil: none

	past    session.History // ended sessions
	late    lateness        // of the sweeper
	limits  limits.Counts
	refused atomic.Uint64 // metadata of another wire version
}

// self is how peers know this engine. Constant after the start.
type self struct {
	key      *trust.Key
	operator *trust.Operator // nil: none
	blob     wire.ConnBlob
	conn     []byte // blob, encoded
}

// sweeper checks the deadlines of transfers and links.
type sweeper struct {
	e     *Engine
	quit  chan struct{}
	done  chan struct{}
	every time.Duration // between ticks, unless nothing happens
}

// stir wakes what sleeps while an engine does nothing. The zero value is not ready: see newStir.
type stir struct {
	idle         atomic.Bool  // the sweeper's next tick is far
	last, roused atomic.Int64 // when something happened, and when the core's threads were roused, in ns since 1970

	sweeper, closer, carrier chan struct{} // closer: the sweeper looks at peers while there are transfers
}

// watcher receives up and down events of devices.
type watcher struct {
	cancel context.CancelFunc
	mu     sync.Mutex // held while all grows, and while it is ended
	all    sync.WaitGroup
	addrs  chan struct{} // a token: addresses have changed, or may have
}

// Conn returns the encoded connection blob. It never changes.
func (e *Engine) Conn() []byte { return e.conn }

// Core returns the gr_core pointer for the shim. It is valid until Close returns.
func (e *Engine) Core() unsafe.Pointer { return e.core.Pointer() }

// enter begins a call of the application: Close waits for its end, which the caller reports by e.life.Leave. It is an error once the end of
// the engine has begun. A call inside may enter again: nobody waits for the write lock (Lifetime.Quiesce tries).
func (e *Engine) enter() error {
	if e.life.Ending() || !e.life.Enter() {
		return errcode.EngineClosed.Errorf("the engine is closed")
	}
	return nil
}

// onEvent runs in the only goroutine for events of the core. It passes each event to the layer that owns it. No layer
// waits here.
func (e *Engine) onEvent(ev core.Event) {
	switch ev.Kind {
	case core.EvXfer:
		e.transfers.Event(ev)
	case core.EvLink:
		e.links.Event(ev)
	case core.EvMessage:
		e.targets.Message(ev)
	}
}
