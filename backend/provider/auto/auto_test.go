package auto

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"gorail/backend/provider"
)

// library is a provider with devices and errors by fabric.
type library struct {
	name    string
	devices map[string][]string
	errs    map[string]error
	opened  *string
}

func (l library) Name() string { return l.name }

func (l library) Discover(_ context.Context, f provider.Filter) (out []provider.Device, err error) {
	for _, fabric := range f.Fabrics {
		if l.errs[fabric] != nil {
			return nil, l.errs[fabric]
		}
		for _, d := range l.devices[fabric] {
			if len(f.Devices) == 0 || slices.Contains(f.Devices, d) {
				out = append(out, provider.Device{Provider: l.name, Fabric: fabric, Name: d})
			}
		}
		if len(out) == 0 && len(l.devices[fabric]) > 0 {
			return nil, fmt.Errorf("%w: %w devices=%s", provider.ErrNoDevice, provider.ErrFiltered, f.Devices)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: no %s here", provider.ErrNoDevice, f.Fabrics)
	}
	return out, nil
}

func (l library) Open(d provider.Device) (provider.Rail, error) {
	*l.opened = l.name + " " + d.Name
	return nil, nil
}

func sysfs(devices ...string) fstest.MapFS {
	m := fstest.MapFS{"class/net/eth0/operstate": {Data: []byte("up\n")}}
	for _, d := range devices {
		path, vendor, _ := strings.Cut(d, "=")
		m["class/"+path+"/device/vendor"] = &fstest.MapFile{Data: []byte(vendor + "\n")}
	}
	return m
}

func TestDiscover(t *testing.T) {
	ofi := library{name: "ofi", devices: map[string][]string{"tcp": {"eth0", "lo"}, "efa": {"rdmap0"}, "cxi": {"cxi0"}, "verbs;ofi_rxm": {"mlx5_0"}}}
	ib := library{name: "verbs", devices: map[string][]string{"verbs": {"mlx5_0", "mlx5_1"}}}
	none := library{name: "ofi", errs: map[string]error{"efa": fmt.Errorf("%w: No data available", provider.ErrNoDevice)}}
	here := library{name: "sm", devices: map[string][]string{"sm": {"memory"}}}
	dead := library{name: "verbs", errs: map[string]error{"verbs": fmt.Errorf("%w: mlx5_0: the port is DOWN", provider.ErrUnusable)}}
	const mlx, efa, cxi = "infiniband/mlx5_0=0x15b3", "infiniband/rdmap0=0x1d0f", "cxi/cxi0=0x17db"
	for name, c := range map[string]struct {
		sys     fstest.MapFS
		ofi, ib library
		fabrics []string
		devices []string
		want    []string
		err     error
		says    []string
		warns   []string // one entry per warning, in order
		apart   bool     // there is no /proc
	}{
		"sockets":                 {sys: sysfs(), ofi: ofi, ib: ib, want: []string{"tcp/eth0", "tcp/lo", "sm/memory"}},
		"InfiniBand":              {sys: sysfs(mlx), ofi: ofi, ib: ib, want: []string{"verbs/mlx5_0", "verbs/mlx5_1", "sm/memory"}},
		"EFA":                     {sys: sysfs(efa), ofi: ofi, ib: ib, want: []string{"efa/rdmap0", "sm/memory"}},
		"Slingshot":               {sys: sysfs(cxi), ofi: ofi, ib: ib, want: []string{"cxi/cxi0", "sm/memory"}},
		"both":                    {sys: sysfs(mlx, efa), ofi: ofi, ib: ib, want: []string{"efa/rdmap0", "verbs/mlx5_0", "verbs/mlx5_1", "sm/memory"}},
		"one of both":             {sys: sysfs(mlx, efa), ofi: ofi, ib: dead, want: []string{"efa/rdmap0", "sm/memory"}, warns: []string{"fabric=mlx5_0 reason=\"device is there but unusable: mlx5_0: the port is DOWN\" used=efa,sm"}},
		"one of both wanted":      {sys: sysfs(mlx, efa), ofi: ofi, ib: ib, devices: []string{"rdmap0", "memory"}, want: []string{"efa/rdmap0", "sm/memory"}},
		"tcp for hardware":        {sys: sysfs(), ofi: none, ib: ib, fabrics: []string{"efa", "cxi", "verbs"}, want: []string{"verbs/mlx5_0", "verbs/mlx5_1"}, warns: []string{"fabric=efa reason=\"no usable device: No data available\" used=verbs option=\"provider=efa,cxi,verbs\"", "fabric=cxi"}},
		"a device of it":          {sys: sysfs(mlx), ofi: ofi, ib: ib, devices: []string{"mlx5_1", "memory"}, want: []string{"verbs/mlx5_1", "sm/memory"}},
		"sockets beside hardware": {sys: sysfs(mlx), ofi: ofi, ib: ib, fabrics: []string{"tcp"}, want: []string{"tcp/eth0", "tcp/lo"}},
		"no /proc":                {sys: sysfs(), ofi: ofi, ib: ib, apart: true, want: []string{"tcp/eth0", "tcp/lo"}, warns: []string{"fabric=sm reason=\"device is there but unusable: sm: boot id\" used=tcp"}},
		"no /proc, named":         {sys: sysfs(), ofi: ofi, ib: ib, apart: true, fabrics: []string{"sm", "tcp"}, err: provider.ErrUnusable, says: []string{"boot id"}},
		"through libfabric":       {sys: sysfs(mlx), ofi: ofi, ib: ib, fabrics: []string{"verbs;ofi_rxm"}, want: []string{"verbs;ofi_rxm/mlx5_0"}},
		"in order":                {sys: sysfs(), ofi: ofi, ib: ib, fabrics: []string{"sm", "cxi", "verbs", "tcp"}, want: []string{"sm/memory", "cxi/cxi0", "verbs/mlx5_0", "verbs/mlx5_1", "tcp/eth0", "tcp/lo"}},
		"a list goes on":          {sys: sysfs(), ofi: none, ib: ib, fabrics: []string{"efa", "verbs"}, want: []string{"verbs/mlx5_0", "verbs/mlx5_1"}, warns: []string{"take efa out of option provider"}},
		"unusable ends a list":    {sys: sysfs(), ofi: ofi, ib: dead, fabrics: []string{"verbs", "tcp"}, err: provider.ErrUnusable, says: []string{"mlx5_0", "DOWN"}},
		"hardware unusable":       {sys: sysfs(mlx, efa), ofi: none, ib: dead, err: provider.ErrUnusable, says: []string{"mlx5_0", "DOWN", "rdmap0", "No data", "provider=tcp"}},
		"hardware not wanted":     {sys: sysfs(mlx), ofi: ofi, ib: ib, devices: []string{"eth0"}, err: provider.ErrNoDevice, says: []string{"devices=[eth0]", "mlx5_0"}},
		"nothing in a list":       {sys: sysfs(), ofi: none, ib: ib, fabrics: []string{"efa", "cxi"}, err: provider.ErrNoDevice, says: []string{"provider=efa,cxi", "No data", "no [cxi]"}},
		"one that is not there":   {sys: sysfs(), ofi: none, ib: ib, fabrics: []string{"shm"}, err: provider.ErrNoDevice, says: []string{"no [shm]"}},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			here := here
			if c.apart {
				here.errs = map[string]error{"sm": fmt.Errorf("%w: sm: boot id", provider.ErrUnusable)}
			}
			got, err := Provider{Fabrics: []provider.Provider{c.ib, here}, OFI: c.ofi, Sys: c.sys, Log: slog.New(slog.NewTextHandler(&log, nil))}.Discover(context.Background(), provider.Filter{Fabrics: c.fabrics, Devices: c.devices})
			if c.err != nil {
				require.ErrorIs(t, err, c.err)
				for _, part := range c.says {
					require.ErrorContains(t, err, part)
				}
				return
			}
			require.NoError(t, err)
			var names []string
			for _, d := range got {
				names = append(names, d.Fabric+"/"+d.Name)
			}
			require.Equal(t, c.want, names)
			lines := strings.SplitAfter(log.String(), "\n")
			require.Len(t, lines, len(c.warns)+1, log.String())
			for i, w := range c.warns {
				require.Contains(t, lines[i], "level=WARN")
				require.Contains(t, lines[i], w)
			}
		})
	}
}

// The provider that found a device opens it.
func TestOpen(t *testing.T) {
	var opened string
	p := Provider{OFI: library{name: "ofi", opened: &opened}, Fabrics: []provider.Provider{library{name: "verbs", opened: &opened},
		library{name: "sm", opened: &opened}}}
	for _, name := range []string{"verbs", "ofi", "sm"} {
		_, err := p.Open(provider.Device{Provider: name, Name: "x"})
		require.NoError(t, err)
		require.Equal(t, name+" x", opened)
	}
}
