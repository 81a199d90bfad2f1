// Package auto chooses between the libraries: libibverbs on InfiniBand, RoCE and iWARP, libfabric on EFA, CXI and sockets, and besides
// them memory for peers of the same host. It is the one place that knows which fabric goes before which.
package auto

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// Word is the name in the option `provider` that leaves the choice to this package; Verbs is the fabric of libibverbs, Local that of
// one host's memory.
const (
	Word  = "auto"
	Verbs = "verbs"
	Local = "local"
)

// Provider implements provider.Provider over others.
type Provider struct {
	Verbs, OFI, Local provider.Provider
	Sys               fs.FS // "/sys"; nil = the machine's
}

var _ provider.Provider = Provider{}

// Name implements provider.Provider.
func (Provider) Name() string { return Word }

// Open implements provider.Provider: the one that found the device opens it.
func (p Provider) Open(d provider.Device) (provider.Rail, error) {
	for _, from := range []provider.Provider{p.Verbs, p.Local} {
		if d.Provider == from.Name() {
			return from.Open(d)
		}
	}
	return p.OFI.Open(d)
}

// Discover implements provider.Provider: what the filter names, in its order, of fabrics that are there. Hardware that is
// there and unusable is an error: the next in the list may be a tenth as fast.
func (p Provider) Discover(ctx context.Context, f provider.Filter) ([]provider.Device, error) {
	names := f.Fabrics
	if len(names) == 0 {
		names = []string{Word}
	}
	var out []provider.Device
	var failed error
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var found []provider.Device
		var err error
		if name == Word {
			if found, err = p.auto(ctx, f.Devices); err == nil {
				var here []provider.Device
				here, err = p.fabric(ctx, Local, f.Devices)
				found = append(found, here...)
			}
		} else {
			found, err = p.fabric(ctx, name, f.Devices)
		}
		if errors.Is(err, provider.ErrUnusable) || err != nil && len(names) == 1 {
			return nil, err
		}
		if failed == nil {
			failed = err
		} else if err != nil {
			failed = fmt.Errorf("%w; %w", failed, err)
		}
		out = append(out, found...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: option provider=%s: %w", provider.ErrNoDevice, strings.Join(names, ","), failed)
	}
	return out, nil
}

func (p Provider) fabric(ctx context.Context, name string, devices []string) ([]provider.Device, error) {
	from := p.OFI
	switch name {
	case Verbs:
		from = p.Verbs
	case Local:
		from = p.Local
	}
	return from.Discover(ctx, provider.Filter{Fabrics: []string{name}, Devices: devices})
}

// auto takes RDMA hardware where there is any, and sockets only where there is none: silently moving to a path a tenth as
// fast is worse than an error that names the device.
func (p Provider) auto(ctx context.Context, devices []string) ([]provider.Device, error) {
	there := p.hardware()
	if len(there) == 0 {
		return p.fabric(ctx, "tcp", devices)
	}
	var out []provider.Device
	var reasons []string
	filtered := false
	for _, fabric := range []string{"efa", "cxi", Verbs} {
		if len(there[fabric]) == 0 {
			continue
		}
		found, err := p.fabric(ctx, fabric, devices)
		if err != nil {
			reasons = append(reasons, fmt.Sprintf("%s: %v", strings.Join(there[fabric], ","), err))
			filtered = filtered || errors.Is(err, provider.ErrFiltered)
		}
		out = append(out, found...)
	}
	switch {
	case len(out) > 0:
		return out, nil
	case filtered:
		return nil, fmt.Errorf("%w: %s", provider.ErrNoDevice, strings.Join(reasons, "; "))
	default:
		return nil, fmt.Errorf("%w: %s; mend that, or set option provider=tcp to use sockets all the same", provider.ErrUnusable,
			strings.Join(reasons, "; "))
	}
}

// hardware is the RDMA devices that the kernel knows (class/cxi, class/infiniband below sys), by the fabric that drives them.
func (p Provider) hardware() map[string][]string {
	sys := p.Sys
	if sys == nil {
		sys = os.DirFS("/sys")
	}
	const amazon = "0x1d0f"
	found := map[string][]string{}
	for _, class := range []string{"cxi", "infiniband"} {
		list, err := fs.ReadDir(sys, "class/"+class)
		if err != nil {
			continue
		}
		for _, d := range list {
			fabric := map[string]string{"cxi": "cxi", "infiniband": Verbs}[class]
			if class == "infiniband" && topo.Word(sys, "class/infiniband/"+d.Name()+"/device/vendor") == amazon {
				fabric = "efa"
			}
			found[fabric] = append(found[fabric], d.Name())
		}
	}
	for _, names := range found {
		slices.Sort(names)
	}
	return found
}
