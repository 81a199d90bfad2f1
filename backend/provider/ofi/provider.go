// Package ofi drives fabrics through libfabric (FI_EP_RDM endpoints with FI_RMA and FI_MSG): the native tcp providers,
// EFA, CXI and what else libfabric offers.
//
// What is chosen, opened and let in is decided here: devices (discover.go, pure), their attributes (caps.go), endpoints and who may connect
// to them (accept_filter.go). Package libfabric below is the binding, with all that is C; package sockets finds what libfabric keeps to itself.
package ofi

import (
	"context"
	"fmt"
	"io/fs"
	"os"

	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
)

// Options of a Provider; the zero value is usable.
type Options struct {
	LibraryPath string // a path or soname of libfabric; "" = libfabric.Default
	CUDAPath    string // of the GPUs' driver; "" = gpu.DefaultPath
	HMEM        string // whether devices are asked to know memory of GPUs: HMEMAuto ("", too), HMEMOn, HMEMOff
	Sys         fs.FS  // "/sys"; nil = the machine's
	Ports       Ports  // that the tcp family's endpoints listen on
	Tuning
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
		p.path = libfabric.Default
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
	unasked := unasked(p.hmem, p.cuda) // before libfabric loads the driver, too
	lib, err := libfabric.Load(p.path)
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
	if !ok || e.Library() == nil {
		return nil, fmt.Errorf("%w: %s/%s was not found by Discover of provider %q", provider.ErrNoDevice, d.Fabric, d.Name, p.Name())
	}
	r, err := openRail(d, e, p.port, p.tune)
	if err != nil {
		return nil, err
	}
	return r.withGPUs(p.sys, p.cuda, e.unasked), nil
}
