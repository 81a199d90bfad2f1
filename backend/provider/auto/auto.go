// Package auto lists all providers of an engine (all.go), for the plugin and for gorail doctor, and chooses between them:
// libibverbs for InfiniBand and RoCE; libfabric for EFA and CXI; sockets. Shared memory is added for peers of the same
// host. The order of preference between fabrics is defined only here.
package auto

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// Provider implements provider.Provider over others.
type Provider struct {
	Fabrics []provider.Provider // the name of each is a word of option provider, and of its only fabric
	OFI     provider.Provider   // libfabric: serves every other word
	Sys     fs.FS               // "/sys"; nil = this machine's
	Log     *slog.Logger        // for warnings about unused fabrics; nil = no warnings
}

var _ provider.Provider = Provider{}

// Name implements provider.Provider.
func (Provider) Name() string { return provider.Auto }

// Open implements provider.Provider. The provider that found the device opens it.
func (p Provider) Open(d provider.Device) (provider.Rail, error) {
	for _, from := range p.Fabrics {
		if d.Provider == from.Name() {
			return from.Open(d)
		}
	}
	return p.OFI.Open(d)
}

// Discover implements provider.Provider. It returns the devices of the filter's fabrics, in the filter's order.
// Unusable hardware is an error, because the next fabric in the list may be a tenth as fast. A named fabric without a
// device is a warning, and so is unusable shared memory that is not named.
func (p Provider) Discover(ctx context.Context, f provider.Filter) ([]provider.Device, error) {
	names := f.Fabrics
	if len(names) == 0 {
		names = []string{provider.Auto}
	}
	var out []provider.Device
	var missing absent
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		found, err := p.named(ctx, name, f.Devices, &missing)
		if errors.Is(err, provider.ErrUnusable) || err != nil && len(names) == 1 {
			return nil, err
		}
		if err != nil {
			missing.add(name, err)
		}
		out = append(out, found...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: option provider=%s: %w", provider.ErrNoDevice, strings.Join(names, ","), missing.err())
	}
	missing.warn(p.Log, names, out)
	return out, nil
}

// named returns the devices for one word of option provider.
func (p Provider) named(ctx context.Context, name string, devices []string, missing *absent) ([]provider.Device, error) {
	if name != provider.Auto {
		return p.fabric(ctx, name, devices)
	}
	found, err := p.auto(ctx, devices, missing)
	if err != nil {
		return nil, err
	}
	here, err := p.fabric(ctx, provider.SharedMemory, devices)
	if len(found) > 0 && errors.Is(err, provider.ErrUnusable) { // no /proc: the network reaches peers of this host, too
		missing.add(provider.SharedMemory, err)
		return found, nil
	}
	return append(append(found, here...), p.nvlink(ctx, devices, missing)...), err
}

// nvlink returns the device of NVLink between hosts, which goes beside all others. Other machines have no such provider.
func (p Provider) nvlink(ctx context.Context, devices []string, missing *absent) []provider.Device {
	if !slices.ContainsFunc(p.Fabrics, func(own provider.Provider) bool { return own.Name() == provider.NVLink }) {
		return nil
	}
	found, err := p.fabric(ctx, provider.NVLink, devices)
	if err != nil && !errors.Is(err, provider.ErrAbsent) {
		missing.add(provider.NVLink, err)
	}
	return found
}

func (p Provider) fabric(ctx context.Context, name string, devices []string) ([]provider.Device, error) {
	from := p.OFI
	for _, own := range p.Fabrics {
		if own.Name() == name {
			from = own
		}
	}
	name, _ = strings.CutPrefix(name, provider.Libfabric)
	return from.Discover(ctx, provider.Filter{Fabrics: []string{name}, Devices: devices})
}

// auto uses RDMA hardware if the machine has any, and sockets only if it has none. A silent fallback to a path a tenth
// as fast would be worse than an error that names the device.
func (p Provider) auto(ctx context.Context, devices []string, missing *absent) ([]provider.Device, error) {
	there := p.hardware()
	if len(there) == 0 {
		return p.fabric(ctx, provider.TCP, devices)
	}
	var out []provider.Device
	var failed absent
	filtered := false
	for _, fabric := range []string{"efa", "cxi", provider.Verbs} {
		if len(there[fabric]) == 0 {
			continue
		}
		found, err := p.fabric(ctx, fabric, devices)
		if err != nil {
			failed.add(strings.Join(there[fabric], ","), err)
			filtered = filtered || errors.Is(err, provider.ErrFiltered)
		}
		out = append(out, found...)
	}
	switch {
	case len(out) > 0:
		for _, a := range failed {
			if !errors.Is(a.reason, provider.ErrFiltered) { // option devices excludes the fabric on purpose
				missing.add(a.name, a.reason)
			}
		}
		return out, nil
	case filtered:
		return nil, fmt.Errorf("%w: %v", provider.ErrNoDevice, failed.err()) //nolint:errorlint // ErrNoDevice alone classifies it
	default:
		return nil, fmt.Errorf("%w: %v; fix the device, or set option provider=tcp to use sockets instead", provider.ErrUnusable, failed.err()) //nolint:errorlint // as above
	}
}

// hardware returns the RDMA devices by the fabric that drives them.
func (p Provider) hardware() map[string][]string {
	if p.Sys == nil {
		return topo.Hardware(os.DirFS("/sys"))
	}
	return topo.Hardware(p.Sys)
}
