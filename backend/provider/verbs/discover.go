package verbs

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/provider/verbs/ibverbs"
	"gorail/backend/topo"
)

// discover turns the ports of a machine into devices, those that cannot be used now last; why has a reason for each of these.
func discover(ctx context.Context, lib *ibverbs.Library, opt Options, ports []port) (devs []provider.Device, why []error) {
	m := topo.Read(opt.Sys)
	iwarp := &iwarpPorts{path: opt.CMLibraryPath}
	var waiting []provider.Device
	for _, p := range ports {
		if ctx.Err() != nil {
			return nil, []error{ctx.Err()}
		}
		d, err := usable(lib, opt.Sys, m, iwarp, p, opt.GIDIndex)
		if err != nil {
			why = append(why, fmt.Errorf("%s: %w", p.name(), err))
			waiting = append(waiting, waits(p, opt, m, err))
			continue
		}
		devs = append(devs, d)
	}
	return append(devs, waiting...), why
}

// waits is a port that cannot be used now. The subnet, where it has one already, says which network it will be in.
func waits(p port, opt Options, m *topo.Machine, why error) provider.Device {
	d := provider.Device{Provider: Name, Fabric: Name, Name: p.name(), Hardware: true, NUMA: -1, Waits: why.Error()}
	var nets []string
	if r := m.Device(p.device); r != nil {
		d.NUMA, nets = r.NUMA, r.Nets
	}
	if p.err != nil || p.iwarp {
		return d
	}
	if g, err := chooseGID(p.reachable(opt.Sys, opt.GIDIndex), p.ethernet, opt.GIDIndex); err == nil {
		d.Addr, d.Subnet = reach(g, p.ethernet, append([]string{g.net}, nets...))
	}
	return d
}

func usable(lib *ibverbs.Library, sys fs.FS, m *topo.Machine, iwarp *iwarpPorts, p port, gidIndex int) (provider.Device, error) {
	switch {
	case p.err != nil:
		hint := limit(p.err.Errno)
		if hint == "" && p.err.Call == "ibv_open_device" {
			hint = " (is /dev/infiniband there, and may this user open it?)"
		}
		return provider.Device{}, fmt.Errorf("%w%s", p.err, hint)
	case p.iwarp:
		return iwarp.device(lib, sys, m, p)
	case !p.active:
		return provider.Device{}, fmt.Errorf("the port is %s", p.state)
	}
	g, err := chooseGID(p.reachable(sys, gidIndex), p.ethernet, gidIndex)
	if err != nil {
		return provider.Device{}, err
	}
	d := provider.Device{Provider: Name, Fabric: Name, Name: p.name(), Hardware: true, Mbps: p.mbps, NUMA: -1, Opaque: &entry{lib: lib, port: p, sys: sys, asked: gidIndex, gid: g}}
	nets := []string{g.net}
	if r := m.Device(p.device); r != nil {
		nets, d.NUMA = append(nets, r.Nets...), r.NUMA
	}
	d.Addr, d.Subnet = reach(g, p.ethernet, nets)
	return d, nil
}

// reach is the address of the port's interface, for the control channel, and what a peer's port must share. On InfiniBand
// that is the subnet prefix of the GID, and the address that of an IPoIB interface if there is one.
func reach(g gid, ethernet bool, nets []string) (addr, subnet string) {
	own := g.addr.Unmap()
	if !ethernet {
		b := g.addr.As16()
		subnet = fmt.Sprintf("ib:%x", b[:8])
	}
	for _, name := range nets {
		for _, p := range prefixes(name) {
			switch {
			case ethernet && p.Addr() == own && own.IsLinkLocalUnicast():
				return "", p.Masked().String()
			case ethernet && p.Addr() == own:
				return own.String(), p.Masked().String()
			case !ethernet && addr == "" && !p.Addr().IsLinkLocalUnicast():
				addr = p.Addr().String()
			}
		}
	}
	return addr, subnet
}

// none is the error of a machine without a usable port.
func none(why []error) error {
	if len(why) == 0 {
		return fmt.Errorf("%w: no InfiniBand, RoCE or iWARP device", provider.ErrNoDevice)
	}
	return fmt.Errorf("%w: %w", provider.ErrUnusable, reasons(why))
}

// reasons is one error of several, on one line.
type reasons []error

func (r reasons) Error() string {
	var text []string
	for _, err := range r {
		text = append(text, err.Error())
	}
	return strings.Join(text, "; ")
}

func (r reasons) Unwrap() []error { return r }
