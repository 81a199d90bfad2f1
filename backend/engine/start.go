package engine

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/gpu"
	"gorail/backend/host"
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

// New creates an engine: it opens rails, starts the core's thread and opens the control channel. On error nothing is
// left behind.
func New(cfg Config) (*Engine, error) {
	e := &Engine{name: cfg.Agent, opt: cfg.Options, stir: newStir()}
	e.version, e.started, e.tap = cfg.Version, time.Now(), stats.NewTap(cfg.Log.Handler())
	e.log = slog.New(e.tap).With("agent", cfg.Agent)
	e.staging = &staging.Side{Copier: staging.New(cfg.Options.CUDAPath, gpu.HowOf(cfg.Options.GPUCopy)), Log: e.log, Life: &e.life, Size: e.opt.StageSize,
		Memory: e.opt.StagingMemory, Limits: &e.limits, Abandon: make(chan struct{}), Packing: staging.Packing{Mode: e.opt.Compression}}
	if err := e.checkStatsFile(); err != nil {
		return nil, err
	}
	if err := host.Room(); err != nil {
		return nil, errcode.NoDescriptors.Errorf("%w", host.Advise(err))
	}
	if err := e.start(cfg); err != nil {
		_ = e.Close()
		return nil, errcode.Of(err).Errorf("%w", host.Advise(err))
	}
	return e, nil
}

func (e *Engine) start(cfg Config) error {
	found, err := cfg.Provider.Discover(context.Background(), provider.Filter{Fabrics: e.opt.Provider, Devices: e.opt.Devices})
	if err != nil {
		return errcode.DiscoverFailed.Errorf("find rails: %w", err)
	}
	if err := inClear(&e.opt, found); err != nil {
		return errcode.CannotEncrypt.Errorf("%w", err)
	}
	e.rails = rails.New(e.opt, e.log, cfg.Provider, cfg.nets)
	if cfg.sys != nil {
		e.rails.Sys = cfg.sys
	}
	machine := topo.Read(e.rails.Sys)
	e.rails.Version = cfg.Version
	e.rails.Plan(found, machine)
	if e.core, err = core.New(coreConfig(&e.opt, e.rails.Slots)); err != nil {
		return errcode.CoreNotMade.Errorf("%w", err)
	}
	e.share()
	if err := e.rails.Open(e.core, machine); err != nil {
		return err
	}
	e.layers()
	if e.ev, err = e.core.Events(e.onEvent); err != nil {
		return errcode.CoreNotMade.Errorf("event descriptor: %w", err)
	}
	if err := e.identity(); err != nil {
		return errcode.IdentityUnusable.Errorf("%w", err)
	}
	if err := e.openControl(machine); err != nil {
		return err
	}
	e.blob.Control = e.node.Addrs()
	if e.conn, err = e.blob.Encode(); err != nil {
		return errcode.BlobTooLarge.Errorf("connection blob: %w", err)
	}
	e.initiators = session.NewInitiators(session.InitiatorConfig{Options: &e.opt, Log: e.log, Life: &e.life, Core: e.core, Links: e.links, Regions: e.regions,
		Staging: e.staging, Transfers: e.transfers, Past: &e.past, Limits: &e.limits, Whereabouts: e.targets.Whereabouts, Widen: e.rails.Want}, e.node, e.blob, e.conn)
	e.sweeper = startSweeper(e)
	e.watcher = startWatcher(e)
	e.openSocket()
	e.startStats()
	return nil
}

// inClear refuses rails that would carry data out of the host in clear although the option says encryption.
func inClear(o *option.Options, found []provider.Device) error {
	found = slices.DeleteFunc(slices.Clone(found), func(d provider.Device) bool { return d.Encrypts || d.Host })
	if !o.Encryption || o.TrustedRDMA || len(found) == 0 {
		return nil
	}
	return fmt.Errorf("%w: encryption=on, and these devices cannot encrypt: %s; write provider=tcp,sm to encrypt all that leaves this host, or add rdma=trusted if their network is trusted",
		provider.ErrUnusable, rails.Names(found))
}

// layers creates the layers between the rails and the control channel.
func (e *Engine) layers() {
	e.links = &session.Set{Rails: e.rails, Log: e.log, Life: &e.life, ConnectTimeout: e.opt.ConnectTimeout}
	e.regions = region.NewRegistry(e.opt, e.log, e.core, e.rails, e.staging.Copier.Driver(),
		func(gone []*region.Region, deadline time.Time, why string) {
			e.transfers.EndTransfers(gone, deadline, why)
		})
	e.regions.After = e.life.After
	e.staging.Regions = e.regions
	e.transfers = transfer.New(transfer.Config{Options: &e.opt, Log: e.log, Life: &e.life, Core: e.core, Rails: e.rails, Regions: e.regions,
		Woken: e.stir.transfers})
	e.targets = session.NewTargets(session.TargetConfig{Options: &e.opt, Log: e.log, Life: &e.life, Core: e.core, Links: e.links, Regions: e.regions,
		Staging: e.staging, Past: &e.past, Limits: &e.limits, Vitals: e.vitals,
		Loaded: func(agent string) (wire.EngineID, bool) { return e.initiators.Engine(agent) },
		Moved:  func(engine wire.EngineID, control []string) { e.initiators.PeerMoved(engine, control) }})
}

// identity makes our key and the connection blob. The control addresses follow.
func (e *Engine) identity() (err error) {
	if e.key, err = trust.NewKey(); err != nil {
		return err
	}
	o := &e.opt.Trust
	e.key.PostQuantum = o.Encryption
	e.operator, err = trust.Open(trust.Config{CA: o.TLSCA, Cert: o.TLSCert, Key: o.TLSKey, SecretFile: o.SecretFile, Peers: o.TLSPeers,
		Required: o.RequireIdentity, Log: e.log})
	if err != nil {
		return err
	}
	e.blob = wire.ConnBlob{Engine: e.key.Pin.Engine(), Pin: e.key.Pin, Proves: e.operator.Wants(), Agent: e.name, Boot: bootID(), NetNS: topo.NetNS(), Process: peer.Self()}
	rand.Read(e.blob.Token[:])
	e.blob.Rails = e.offers()
	e.blob.Slice, e.blob.Links = e.regions.Slice, uint8(e.opt.QPsPerRail)
	return nil
}

// offers describes our rails for peers.
func (e *Engine) offers() []wire.RailOffer {
	offers := rails.Offers(e.rails.Devices())
	for i, r := range e.rails.List {
		if p, ok := r.Rail.(provider.Host); ok {
			offers[i].Proof = p.Proof()
		}
		offers[i].Idle = !e.rails.Common(i)
	}
	return offers
}

// coreConfig returns the options of the core.
func coreConfig(o *option.Options, slots int) core.Config {
	return core.Config{Slots: slots, WindowMin: o.WindowMin, WindowMax: o.WindowMax,
		SpinForPeers: o.SpinsForPeers(), NotifQueue: o.NotifQueue, NotifMemory: o.NotifMemory}
}

// Two engines with the same boot id and network namespace reach each other over loopback.

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
