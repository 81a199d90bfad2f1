// Package engine wires the layers together: one method per call of the plugin API, and the lives of rails, regions,
// sessions and transfers. All methods may be called from any thread at any time; none but Release and Deregister waits for
// a peer. docs/architecture.md has the order of packages and of their locks.
package engine

import (
	"context"
	"log/slog"
	"sync"
	"unsafe"

	"gorail/backend/core"
	"gorail/backend/initiator"
	"gorail/backend/lifetime"
	"gorail/backend/link"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/staging"
	"gorail/backend/status"
	"gorail/backend/target"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// Config is what an engine is made from.
type Config struct {
	Agent    string
	Options  option.Options
	Provider provider.Provider
	Log      *slog.Logger

	nets func() []rails.NetInterface // nil: the kernel's
}

// Engine is one backend instance of one agent.
type Engine struct {
	name string
	opt  option.Options
	log  *slog.Logger
	life lifetime.Engine
	core *core.Core
	ev   *core.Events
	blob wire.ConnBlob
	conn []byte // blob, encoded

	rails      *rails.Set
	regions    *region.Registry
	links      *link.Set
	transfers  *transfer.Table
	staging    *staging.Side
	initiators *initiator.Sessions
	targets    *target.Sessions
	node       *peer.Node
	past       link.History // sessions that have ended

	sweeper *sweeper
	watcher *watcher
}

// sweeper looks after deadlines, of transfers and of links.
type sweeper struct {
	e    *Engine
	quit chan struct{}
	done chan struct{}
}

// watcher hears of devices that go down and come up.
type watcher struct {
	cancel context.CancelFunc
	all    sync.WaitGroup
}

// Conn is the connection blob; it never changes.
func (e *Engine) Conn() []byte { return e.conn }

// Core is the gr_core for the shim, valid until Close returns.
func (e *Engine) Core() unsafe.Pointer { return e.core.Pointer() }

func (e *Engine) usable() error {
	if e.life.Closed() {
		return status.Errorf(status.ErrBackend, "the engine is closed")
	}
	return nil
}
