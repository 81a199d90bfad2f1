// Package verbs drives InfiniBand, RoCE and iWARP through libibverbs: one reliable connection per peer and rail.
//
// Which ports and GIDs are used, how they are opened and connected is decided here. Package ibverbs below is the binding of libibverbs, with what
// posts and polls in C; rdmacm is that of librdmacm, which connects iWARP devices.
package verbs

import (
	"context"
	"fmt"
	"os"

	"gorail/backend/provider"
	"gorail/backend/provider/verbs/ibverbs"
)

// Provider implements provider.Provider over libibverbs. Its methods are safe for concurrent use.
type Provider struct{ opt Options }

var _ provider.Provider = (*Provider)(nil)

// New makes a Provider; nothing is loaded before Discover.
func New(o Options) *Provider {
	if o.LibraryPath == "" {
		o.LibraryPath = ibverbs.Default
	}
	if o.CMLibraryPath == "" {
		o.CMLibraryPath = DefaultCMLibrary
	}
	if o.connectTime == 0 {
		o.connectTime = connectTime
	}
	if o.Sys == nil {
		o.Sys = os.DirFS("/sys")
	}
	return &Provider{o}
}

// Name implements provider.Provider.
func (p *Provider) Name() string { return Name }

// Discover implements provider.Provider. An error when no port can be used: provider.ErrNoLibrary, ErrNoDevice where there
// is none, ErrUnusable with the reason for each where there is. Beside ports that can be used, the others are listed as waiting.
func (p *Provider) Discover(ctx context.Context, _ provider.Filter) ([]provider.Device, error) {
	lib, err := ibverbs.Load(p.opt.LibraryPath)
	if err != nil {
		return nil, err
	}
	ports, err := scan(lib)
	if err != nil {
		return nil, err
	}
	devs, why := discover(ctx, lib, p.opt, ports)
	if len(devs) == len(why) { // none can be used
		return nil, none(why)
	}
	return devs, nil
}

// Open implements provider.Provider, for a Device that this package's Discover has returned.
func (p *Provider) Open(d provider.Device) (provider.Rail, error) {
	e, ok := d.Opaque.(*entry)
	switch {
	case d.Waits != "":
		return nil, fmt.Errorf("%w: %s/%s: %s", provider.ErrUnusable, d.Fabric, d.Name, d.Waits)
	case !ok:
		return nil, fmt.Errorf("%w: %s/%s was not found by Discover of provider %q", provider.ErrNoDevice, d.Fabric, d.Name, Name)
	}
	return openRail(d, e, p.opt)
}
