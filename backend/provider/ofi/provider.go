// Package ofi drives fabrics through libfabric (FI_EP_RDM endpoints with FI_RMA and FI_MSG): EFA, CXI and other providers
// of libfabric, except its tcp.
//
// This package chooses devices (discover.go, without side effects), opens them, and gives peers addresses of their shared
// endpoint. Package libfabric is the binding, with all C code.
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
	LibraryPath string // path or soname of libfabric; "" = libfabric.Default
	CUDAPath    string // path or soname of the GPU driver's library; "" = gpu.DefaultPath
	HMEM        string // whether FI_HMEM is requested: HMEMAuto (or ""), HMEMOn, HMEMOff
	Sys         fs.FS  // "/sys"; nil = this machine's
	Tuning
}

// Provider implements provider.Provider over libfabric. Its methods are safe for concurrent use.
type Provider struct {
	path string
	cuda string
	hmem string
	sys  fs.FS
	tune Tuning
}

var _ provider.Provider = (*Provider)(nil)

// New makes a Provider. Discover loads the library.
func New(o Options) *Provider {
	p := &Provider{path: o.LibraryPath, cuda: o.CUDAPath, hmem: o.HMEM, sys: o.Sys, tune: o.Tuning}
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

// Discover implements provider.Provider. The first call of a process loads libfabric and starts its providers (60-120
// ms). Each call queries libfabric again (less than 1 ms per fabric), so it sees interfaces that came or went.
func (p *Provider) Discover(ctx context.Context, f provider.Filter) ([]provider.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	noHMEM := noHMEM(p.hmem, p.cuda) // before libfabric loads the driver as well
	lib, err := libfabric.Load(p.path)
	if err != nil {
		return nil, err
	}
	asked, err := p.tune.asked()
	if err != nil {
		return nil, err
	}
	return discover(ctx, library{lib.Describe(), asker{lib, asked, p.tune, noHMEM}.List}, p.sys, f)
}

// Open implements provider.Provider, for a Device from this package's Discover.
func (p *Provider) Open(d provider.Device) (provider.Rail, error) {
	e, ok := d.Opaque.(*entry)
	if !ok || e.Library() == nil {
		return nil, fmt.Errorf("%w: %s/%s was not found by Discover of provider %q", provider.ErrNoDevice, d.Fabric, d.Name, p.Name())
	}
	r, err := openRail(d, e, p.tune)
	if err != nil {
		return nil, err
	}
	return r.withGPUs(p.sys, p.cuda, e.noHMEM), nil
}
