// Package engine wires the layers together: one method per call of the plugin API, and the lives of rails, regions,
// peers and transfers. All methods may be called from any thread at any time; none but Release and Deregister waits for
// a peer.
//
// Locks, in the order in which they may be taken: Registry.renewMu, loads and hellos, stagedRun.mu, transfer.mu, remote.mu or target.mu, Registry.mu, Engine.mu,
// region.Table.mu, Engine.linksMu, then those of history and meters. The core's own locks come below all of them.
package engine

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"gorail/backend/core"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/quota"
	"gorail/backend/rails"
	"gorail/backend/region"
	"gorail/backend/rlimit"
	"gorail/backend/stage"
	"gorail/backend/status"
	"gorail/backend/topo"
	"gorail/backend/wire"
	"gorail/backend/xfer"
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
	name    string
	id      wire.EngineID
	opt     option.Options
	log     *slog.Logger
	core    *core.Core
	ev      *core.Events
	railSet *rails.Set
	rails   []*rails.Rail // of railSet

	node *peer.Node
	blob wire.ConnBlob
	conn []byte

	life sync.RWMutex // held for reading by whatever the control channel calls; shutdown waits for it
	dead bool         // guarded by life: the core is going

	regions *region.Registry
	xfers   *xfer.Table[*transfer]
	ids     atomic.Uint64 // links, sessions, requests
	closed  atomic.Bool
	sweeper *sweeper
	late    sync.WaitGroup // links of shared endpoints that drain, sessions that are being left
	hurry   chan struct{}  // closed: sessions that are being left do not wait for peers any more
	watcher *watcher
	past    history // sessions that have ended
	debug   bool    // the log takes debug lines

	stage *staging

	loads  keyLocks[string]        // before all others, too, by agent name: each peer is loaded by one caller at a time
	hellos keyLocks[wire.EngineID] // so: one session of an engine begins at a time

	mu       sync.RWMutex
	remotes  map[string]*remote          // by agent name
	leavers  map[*remote]*departure      // no name leads to them any more: they deliver their last notifications
	targets  map[*peer.In]*target        // sessions in which we are the target
	byID     map[uint64]*target          // the same by session id
	byEngine map[wire.EngineID][]*target // and by the peer's engine

	room    quota.Places
	opening *quota.Turns  // Hellos
	fencing *quota.Turns  // fences of peers
	ending  chan struct{} // sessions of peers that close endpoints
	freeing chan struct{} // and that free what these leave: not behind others that close theirs
	few     quota.Lines   // lines in the log that peers cause
	pending atomic.Int64  // bytes of peers' notifications that miss a part, or an earlier one

	taken map[wire.EngineID]*taken // how far notifications got in sessions that have ended; under mu

	linksMu sync.Mutex
	links   map[uint64]*link
}

// New makes an engine: opens rails, starts the core's thread and the control channel. On error nothing is left behind.
func New(cfg Config) (*Engine, error) {
	e := &Engine{name: cfg.Agent, opt: cfg.Options, log: cfg.Log.With("agent", cfg.Agent), xfers: xfer.New[*transfer](),
		remotes: map[string]*remote{}, leavers: map[*remote]*departure{}, hurry: make(chan struct{}), targets: map[*peer.In]*target{},
		byID: map[uint64]*target{}, byEngine: map[wire.EngineID][]*target{}, opening: quota.NewTurns(openers, quota.NewPace(atOnce, share)), fencing: quota.NewTurns(fencers, nil),
		ending: make(chan struct{}, enders), freeing: make(chan struct{}, enders), taken: map[wire.EngineID]*taken{}, links: map[uint64]*link{}}
	e.stage = &staging{e: e, copier: stage.New(cfg.Options.CUDAPath, cfg.Options.GPUBlocks)}
	e.debug = e.log.Enabled(context.Background(), slog.LevelDebug)
	if err := e.checkStatsFile(); err != nil {
		return nil, err
	}
	if err := rlimit.Room(); err != nil {
		return nil, status.Errorf(status.ErrBackend, "%w", rlimit.Advise(err))
	}
	if err := e.start(cfg.Provider, cfg.nets); err != nil {
		e.shutdown()
		return nil, status.Errorf(status.Of(err), "%w", rlimit.Advise(err))
	}
	return e, nil
}

func (e *Engine) start(prov provider.Provider, nets func() []rails.NetInterface) error {
	found, err := prov.Discover(context.Background(), provider.Filter{Fabrics: e.opt.Provider, Devices: e.opt.Devices})
	if err != nil {
		return status.Errorf(status.ErrBackend, "find rails: %w", err)
	}
	if e.core, err = core.New(coreConfig(&e.opt)); err != nil {
		return status.Errorf(status.ErrBackend, "%w", err)
	}
	machine := topo.Read(os.DirFS("/sys"))
	e.railSet = rails.New(e.opt, e.log, prov, e.core, nets)
	err = e.railSet.Open(found, machine)
	if e.rails = e.railSet.List; err != nil {
		return err
	}
	e.regions = region.NewRegistry(e.opt, e.log, e.core, e.railSet, e.stage.copier, e)
	if e.ev, err = e.core.Events(e.onEvent); err != nil {
		return status.Errorf(status.ErrBackend, "event descriptor: %w", err)
	}
	e.identity()
	if err := e.openControl(machine); err != nil {
		return err
	}
	e.blob.Control = e.node.Addrs()
	if e.conn, err = e.blob.Encode(); err != nil {
		return status.Errorf(status.ErrBackend, "connection blob: %w", err)
	}
	e.sweeper = startSweeper(e)
	e.watcher = startWatcher(e)
	return nil
}

func (e *Engine) identity() {
	e.blob = wire.ConnBlob{Agent: e.name, Boot: bootID(), NetNS: netNS(), Process: peer.Self()}
	rand.Read(e.blob.Engine[:])
	rand.Read(e.blob.Token[:])
	e.id = e.blob.Engine
	e.blob.Rails = e.offers()
	e.blob.Slice, e.blob.Links = e.regions.Slice, uint8(e.opt.QPsPerRail)
}

// Conn is the connection blob; it never changes.
func (e *Engine) Conn() []byte { return e.conn }

// Core is the gr_core for the shim, valid until Close returns.
func (e *Engine) Core() unsafe.Pointer { return e.core.Pointer() }

func (e *Engine) usable() error {
	if e.closed.Load() {
		return status.Errorf(status.ErrBackend, "the engine is closed")
	}
	return nil
}

// coreConfig are the options that the core has.
func coreConfig(o *option.Options) core.Config {
	return core.Config{MaxRails: o.MaxRails, WindowMin: o.WindowMin, WindowMax: o.WindowMax, WindowTime: o.WindowTime, InflightOps: o.InflightOps,
		SpinTime: o.SpinTime, NotifQueue: o.NotifQueue, NotifMemory: o.NotifMemory}
}
