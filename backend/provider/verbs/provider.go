// Package verbs drives InfiniBand, RoCE and iWARP through libibverbs: one reliable connection per peer and rail.
//
// libibverbs is loaded at run time, never linked: the plugin works where there is none, and says so. Choosing ports and
// GIDs, opening and connecting is Go, over one table of the library's functions (ibv.h; rdmacm is librdmacm). Posting and polling are
// small C files (verbs.h).
package verbs

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"time"

	"gorail/backend/option"
	"gorail/backend/provider"
)

// Name of the provider and of its only fabric.
const Name = "verbs"

// DefaultLibrary is the soname that dlopen looks for when Options.LibraryPath is empty.
const DefaultLibrary = "libibverbs.so.1"

// Options of a Provider.
type Options struct {
	LibraryPath   string           // a path or soname of libibverbs; "" = DefaultLibrary
	CMLibraryPath string           // of librdmacm, which iWARP devices need; "" = DefaultCMLibrary
	CUDAPath      string           // of the GPUs' driver; "" = gpu.DefaultPath
	Sys           fs.FS            // "/sys"; nil = the machine's
	Ports         option.PortRange // that iWARP devices listen on
	option.IB

	connectTime time.Duration // 0: connectTime
}

// Provider implements provider.Provider over libibverbs. Its methods are safe for concurrent use.
type Provider struct{ opt Options }

var _ provider.Provider = (*Provider)(nil)

// New makes a Provider; nothing is loaded before Discover.
func New(o Options) *Provider {
	if o.LibraryPath == "" {
		o.LibraryPath = DefaultLibrary
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
	lib, err := loadLibrary(p.opt.LibraryPath)
	if err != nil {
		return nil, err
	}
	ports, err := lib.scan()
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
