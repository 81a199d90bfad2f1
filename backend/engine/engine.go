// Package engine wires the layers together: one method per call of the plugin API, and the lives of rails, regions,
// peers and transfers. All methods may be called from any thread at any time; none but Release and Deregister waits for
// a peer.
//
// Locks, in the order in which they may be taken: transfer.mu, remote.mu or target.mu, Engine.localMu, Engine.mu,
// regionTable.mu, Engine.linksMu. The core's own locks come below all of them.
package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/fastpath"
	"gorail/backend/mr"
	"gorail/backend/option"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/rail"
	"gorail/backend/status"
	"gorail/backend/wire"
	"gorail/backend/xfer"
)

// Config is what an engine is made from.
type Config struct {
	Agent    string
	Options  option.Options
	Provider provider.Provider
	Log      *slog.Logger
}

// Engine is one backend instance of one agent.
type Engine struct {
	name  string
	id    wire.EngineID
	opt   option.Options
	log   *slog.Logger
	core  *fastpath.Core
	ev    *fastpath.Events
	rails []*railState
	node  *peer.Node
	blob  wire.ConnBlob
	conn  []byte

	life sync.RWMutex // held for reading by whatever the control channel calls; shutdown waits for it
	dead bool         // guarded by life: the core is going

	regions regionTable
	xfers   *xfer.Table[*transfer]
	ids     atomic.Uint64 // links, sessions, requests
	closed  atomic.Bool
	sweeper *sweeper

	localMu sync.Mutex
	local   map[wire.Range]*region

	mu      sync.RWMutex
	remotes map[string]*remote   // by agent name
	targets map[*peer.In]*target // sessions in which we are the target
	byID    map[uint64]*target   // the same by session id

	linksMu sync.Mutex
	links   map[uint64]*link
}

// railState is an open rail with its registrations.
type railState struct {
	provider.Rail
	index int
	caps  provider.Caps
	keys  *mr.KeyAllocator
	cache *mr.Cache[provider.MR]
}

func (r *railState) name() string {
	d := r.Device()
	return d.Fabric + "/" + d.Name
}

// registrar lets the cache register on a rail.
type registrar struct{ r *railState }

func (g registrar) Register(addr, length uint64) (provider.MR, error) {
	if g.r.caps.ProviderKeys {
		return g.r.Rail.Register(addr, length, 0)
	}
	key, err := g.r.keys.Alloc()
	if err != nil {
		return nil, err
	}
	m, err := g.r.Rail.Register(addr, length, key)
	if err != nil {
		g.r.keys.Free(key)
		return nil, err
	}
	return ownKey{m, g.r.keys, key}, nil
}

func (g registrar) Unregister(m provider.MR) error { return m.Close() }

// ownKey gives a key of ours back with its region.
type ownKey struct {
	provider.MR
	keys *mr.KeyAllocator
	key  uint64
}

func (k ownKey) Close() error {
	err := k.MR.Close()
	k.keys.Free(k.key)
	return err
}

// New makes an engine: opens rails, starts the core's thread and the control channel. On error nothing is left behind.
func New(cfg Config) (*Engine, error) {
	e := &Engine{name: cfg.Agent, opt: cfg.Options, log: cfg.Log.With("agent", cfg.Agent), xfers: xfer.New[*transfer](),
		local: map[wire.Range]*region{}, remotes: map[string]*remote{}, targets: map[*peer.In]*target{},
		byID: map[uint64]*target{}, links: map[uint64]*link{}}
	if err := e.start(cfg.Provider); err != nil {
		e.shutdown()
		return nil, err
	}
	return e, nil
}

func (e *Engine) start(prov provider.Provider) error {
	found, err := prov.Discover(context.Background(), provider.Filter{Fabrics: e.opt.Provider, Devices: e.opt.Devices})
	if err != nil {
		return status.Errorf(status.ErrBackend, "find rails: %w", err)
	}
	if e.core, err = fastpath.New(e.opt); err != nil {
		return status.Errorf(status.ErrBackend, "%w", err)
	}
	if err := e.openRails(prov, found); err != nil {
		return err
	}
	e.regions = regionTable{core: e.core, slots: e.opt.MaxRails}
	if e.ev, err = e.core.Events(e.onEvent); err != nil {
		return status.Errorf(status.ErrBackend, "event descriptor: %w", err)
	}
	e.identity()
	if err := e.openControl(); err != nil {
		return err
	}
	e.blob.Control = e.node.Addrs()
	if e.conn, err = e.blob.Encode(); err != nil {
		return status.Errorf(status.ErrBackend, "connection blob: %w", err)
	}
	e.sweeper = startSweeper(e)
	return nil
}

func (e *Engine) openRails(prov provider.Provider, found []provider.Device) error {
	chosen, left := rail.Choose(found, e.opt.MaxRails)
	for _, d := range left {
		e.log.Debug("device not used", "device", d.Fabric+"/"+d.Name, "addr", d.Addr)
	}
	var last error
	for _, d := range chosen {
		r, err := prov.Open(d)
		if err != nil {
			last = err
			e.log.Warn("rail dropped", "device", d.Fabric+"/"+d.Name, "err", err)
			continue
		}
		rs := &railState{Rail: r, caps: r.Caps()}
		rs.cache = mr.NewCache[provider.MR](registrar{rs})
		if rs.keys, err = mr.NewKeyAllocator(max(1, min(8, rs.caps.KeySize))); err == nil {
			rs.index, err = e.core.AddRail(r.Core())
		}
		if err != nil {
			r.Close()
			return status.Errorf(status.ErrBackend, "rail %s: %w", d.Name, err)
		}
		e.rails = append(e.rails, rs)
	}
	if len(e.rails) == 0 {
		return status.Errorf(status.ErrBackend, "no rail could be opened (options provider=%v devices=%v): %w", e.opt.Provider, e.opt.Devices, last)
	}
	return nil
}

func (e *Engine) identity() {
	e.blob = wire.ConnBlob{Agent: e.name, Boot: bootID(), NetNS: netNS(), PID: uint32(os.Getpid())}
	rand.Read(e.blob.Engine[:])
	rand.Read(e.blob.Token[:])
	e.id = e.blob.Engine
	devices := make([]provider.Device, len(e.rails))
	for i, r := range e.rails {
		devices[i] = r.Device()
	}
	e.blob.Rails = rail.Offers(devices)
}

// openControl listens on each rail's IP address, on the first port of the option control_port that is free on all of them.
func (e *Engine) openControl() error {
	ports := e.opt.ControlPort
	for port := int(ports.First); ; port++ {
		var err error
		e.node, err = peer.NewNode(peer.Config{Identity: e.blob, PeerTimeout: e.opt.PeerTimeout,
			ConnectTimeout: e.opt.ConnectTimeout, Listen: e.listen(port), Log: e.log}, targetHandler{e})
		if err == nil {
			return nil
		}
		e.node = nil
		if !errors.Is(err, syscall.EADDRINUSE) || port >= int(ports.Last) {
			return status.Errorf(status.ErrBackend, "control channel (option control_port=%d-%d): %w", ports.First, ports.Last, err)
		}
	}
}

// listen gives the control addresses: one per rail that has an IP address, loopback otherwise. Port 0: the system's choice.
func (e *Engine) listen(port int) []string {
	var addrs []string
	seen := map[string]bool{}
	for _, r := range e.rails {
		if a := r.Device().Addr; a != "" && !seen[a] {
			seen[a] = true
			addrs = append(addrs, net.JoinHostPort(a, strconv.Itoa(port)))
		}
	}
	if len(addrs) == 0 {
		addrs = []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	}
	return addrs
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

// Close ends the engine: peers are told goodbye, every transfer ends, nothing of ours is left. It waits for no peer.
func (e *Engine) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	e.shutdown()
	return nil
}

// shutdown undoes start, as far as it got.
func (e *Engine) shutdown() {
	if e.sweeper != nil {
		e.sweeper.stop()
	}
	e.flush()
	if e.node != nil {
		e.node.Close()
	}
	e.mu.Lock()
	remotes := e.remotes
	targets := slices.Collect(maps.Values(e.targets))
	e.remotes = map[string]*remote{}
	e.mu.Unlock()
	for _, r := range remotes {
		r.close("engine closed")
	}
	for _, t := range targets {
		t.close()
	}
	quiet := e.settleDown()
	if e.ev != nil {
		e.ev.Close()
	}
	if e.core == nil {
		return
	}
	e.core.Stop()
	e.writeStats()
	if !quiet {
		e.log.Error("a call from the control channel did not return: what it may use is left behind")
		return
	}
	e.core.DropRails()
	for _, r := range e.local {
		for i, ref := range r.mrs {
			if ref != nil {
				e.rails[i].cache.Release(ref)
			}
		}
	}
	for _, r := range e.rails {
		if err := r.Close(); err != nil {
			e.log.Warn("closing a rail", "rail", r.name(), "err", err)
		}
	}
	e.core.Free()
	e.core = nil
}

// flush gives accepted notifications, of the application's last words before it destroys the engine, a moment to leave.
func (e *Engine) flush() {
	const most = 200 * time.Millisecond
	e.mu.RLock()
	remotes := slices.Collect(maps.Values(e.remotes))
	e.mu.RUnlock()
	for deadline := timeNow().Add(most); timeNow().Before(deadline); time.Sleep(100 * time.Microsecond) {
		if !slices.ContainsFunc(remotes, (*remote).hasNotifs) {
			return
		}
	}
}

// enter notes that a call from the control channel is going on; false: the engine is gone.
func (e *Engine) enter() bool {
	e.life.RLock()
	if e.dead {
		e.life.RUnlock()
		return false
	}
	return true
}

func (e *Engine) leave() { e.life.RUnlock() }

var errClosing = errors.New("the engine is closing")

// settleDown waits, bounded, until no call from the control channel is going on, and lets none begin.
func (e *Engine) settleDown() bool {
	for deadline := timeNow().Add(2 * time.Second); timeNow().Before(deadline); time.Sleep(100 * time.Microsecond) {
		if e.life.TryLock() {
			e.dead = true
			e.life.Unlock()
			return true
		}
	}
	return false
}

func (e *Engine) String() string { return fmt.Sprintf("engine of agent %q", e.name) }

// timeNow is the wall clock of the deadlines kept in Go.
func timeNow() time.Time { return time.Now() }
