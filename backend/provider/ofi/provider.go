// Package ofi drives fabrics through libfabric (FI_EP_RDM endpoints with FI_RMA and FI_MSG): the native tcp providers,
// EFA, CXI and what else libfabric offers.
//
// libfabric is loaded at run time, never linked: one binary works with 1.9 up to 2.x, and says what is missing where there
// is none. Choosing devices (discover.go, pure), opening, and who may connect are Go; posting, polling and registering are small C
// files (ofi.h). C is reached through libfabric.go (its calls) and core.go (what the core posts to and polls).
package ofi

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"runtime"

	"gorail/backend/gpu"
	"gorail/backend/provider"
)

// DefaultLibrary is the soname that dlopen looks for when Options.LibraryPath is empty.
const DefaultLibrary = "libfabric.so.1"

// Options of a Provider; the zero value is usable.
type Options struct {
	LibraryPath string // a path or soname of libfabric; "" = DefaultLibrary
	CUDAPath    string // of the GPUs' driver; "" = gpu.DefaultPath
	HMEM        string // whether devices are asked to know memory of GPUs: HMEMAuto ("", too), HMEMOn, HMEMOff
	Sys         fs.FS  // "/sys"; nil = the machine's
	Ports       Ports  // that the tcp family's endpoints listen on
	Tuning
}

// Ports are what endpoints of the tcp family listen on, and who may connect to them besides the addresses that a peer is known by.
type Ports struct {
	First, Last uint16         // 0: the system chooses
	Sources     []netip.Prefix // of peers behind a translation of addresses
}

// Provider implements provider.Provider over libfabric. Its methods are safe for concurrent use.
type Provider struct {
	path string
	cuda string
	hmem string
	sys  fs.FS
	port Ports
	tune Tuning
}

var _ provider.Provider = (*Provider)(nil)

// New makes a Provider; nothing is loaded before Discover.
func New(o Options) *Provider {
	p := &Provider{path: o.LibraryPath, cuda: o.CUDAPath, hmem: o.HMEM, sys: o.Sys, port: o.Ports, tune: o.Tuning}
	if p.path == "" {
		p.path = DefaultLibrary
	}
	if p.cuda == "" {
		p.cuda = gpu.DefaultPath
	}
	if p.sys == nil {
		p.sys = os.DirFS("/sys")
	}
	return p
}

// Name implements provider.Provider.
func (p *Provider) Name() string { return "ofi" }

// Discover implements provider.Provider. The first call of a process loads libfabric and starts its providers (60-120 ms);
// each call asks libfabric anew (below 1 ms a fabric), so that interfaces that came or went are seen.
func (p *Provider) Discover(ctx context.Context, f provider.Filter) ([]provider.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	unasked := p.wantsHMEM() // before libfabric loads the driver, too
	lib, err := loadLibrary(p.path)
	if err != nil {
		return nil, err
	}
	asked, err := p.tune.asked()
	if err != nil {
		return nil, err
	}
	return discover(ctx, asker{lib, asked, p.tune, unasked}, p.sys, f)
}

// Open implements provider.Provider, for a Device that this package's Discover has returned.
func (p *Provider) Open(d provider.Device) (provider.Rail, error) {
	e, ok := d.Opaque.(*entry)
	if !ok || e.handle == nil {
		return nil, fmt.Errorf("%w: %s/%s was not found by Discover of provider %q", provider.ErrNoDevice, d.Fabric, d.Name, p.Name())
	}
	r, err := openRail(d, e, quirksOf(e), p.port, p.tune)
	runtime.KeepAlive(e)
	if err != nil {
		return nil, err
	}
	return r.withGPUs(p.sys, p.cuda, e.unasked), nil
}
