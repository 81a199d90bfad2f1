// Package verbs drives InfiniBand and RoCE through libibverbs. It has one reliable connection per peer and rail.
//
// This package chooses ports and GIDs, opens them and connects them. Package ibverbs is the binding of libibverbs, with
// the C code that posts and polls.
package verbs

import (
	"context"
	"fmt"
	"io/fs"
	"os"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/verbs/ibverbs"
	"gorail/backend/topo"
)

// Options of a Provider.
type Options struct {
	LibraryPath string // path or soname of libibverbs; "" = ibverbs.Default
	CUDAPath    string // path or soname of the GPU driver's library; "" = gpu.DefaultPath
	Sys         fs.FS  // "/sys"; nil = this machine's
	Interfaces  func() ([]topo.Interface, error)
	option.IB

	moreRNR uint8 // 1: messages wait for a receive without end; 0 but in tests
}

// Provider implements provider.Provider over libibverbs. Its methods are safe for concurrent use.
type Provider struct{ opt Options }

var _ provider.Provider = (*Provider)(nil)

// New makes a Provider. Discover loads the library.
func New(o Options) *Provider {
	if o.LibraryPath == "" {
		o.LibraryPath = ibverbs.Default
	}
	if o.Sys == nil {
		o.Sys = os.DirFS("/sys")
	}
	if o.Interfaces == nil {
		o.Interfaces = topo.Interfaces
	}
	return &Provider{o}
}

// Name implements provider.Provider.
func (p *Provider) Name() string { return provider.Verbs }

// Discover implements provider.Provider. If no port can be used, the error is provider.ErrNoLibrary, ErrNoDevice if
// there is no device, or ErrUnusable with one reason per port. Otherwise unusable ports are listed too, with Waits set.
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
	if len(devs) == len(why) { // no port can be used
		return nil, noUsablePort(why)
	}
	return devs, nil
}

// Open implements provider.Provider, for a Device from this package's Discover.
func (p *Provider) Open(d provider.Device) (provider.Rail, error) {
	e, ok := d.Opaque.(*entry)
	switch {
	case d.Waits != "":
		return nil, fmt.Errorf("%w: %s/%s: %s", provider.ErrUnusable, d.Fabric, d.Name, d.Waits)
	case !ok:
		return nil, fmt.Errorf("%w: %s/%s was not found by Discover of provider %q", provider.ErrNoDevice, d.Fabric, d.Name, provider.Verbs)
	}
	return openRail(d, e, p.opt)
}

// entry is a port that can become a rail.
type entry struct {
	lib  *ibverbs.Library
	port port
	gid  gid
}
