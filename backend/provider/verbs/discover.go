package verbs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/provider/verbs/ibverbs"
	"gorail/backend/topo"
)

// discover turns the machine's ports into devices. Ports that cannot be used now come last; why has one reason for each
// of them.
func discover(ctx context.Context, lib *ibverbs.Library, opt Options, ports []port) (devs []provider.Device, why []error) {
	m := topo.Read(opt.Sys)
	var waiting []provider.Device
	for _, p := range ports {
		if ctx.Err() != nil {
			return nil, []error{ctx.Err()}
		}
		d, err := usable(lib, opt, m, p)
		if err != nil {
			why = append(why, fmt.Errorf("%s: %w", p.name(), err))
			waiting = append(waiting, waitingDevice(p, opt, m, err))
			continue
		}
		devs = append(devs, d)
	}
	return append(devs, waiting...), why
}

// waitingDevice returns the device of a port that cannot be used now. Its subnet, if known, names the port's future network.
func waitingDevice(p port, opt Options, m *topo.Machine, why error) provider.Device {
	d := provider.Device{Provider: Name, Fabric: Name, Name: p.name(), Hardware: true, NUMA: -1, Waits: why.Error()}
	var nets []string
	if r := m.Device(p.device); r != nil {
		d.NUMA, nets = r.NUMA, r.Nets
	}
	if p.err != nil || p.iwarp {
		return d
	}
	if g, err := chooseGID(p.reachable(opt), p.ethernet, opt.GIDIndex); err == nil {
		d.Addr, d.Subnet = opt.reach(g, p.ethernet, append([]string{g.net}, nets...))
	}
	return d
}

func usable(lib *ibverbs.Library, opt Options, m *topo.Machine, p port) (provider.Device, error) {
	switch {
	case p.iwarp:
		return provider.Device{}, errors.New("an iWARP device is not used: provider tcp uses its interface")
	case p.err != nil:
		hint := limit(p.err.Errno)
		if hint == "" && p.err.Call == "ibv_open_device" {
			hint = " (is /dev/infiniband there, and may this user open it?)"
		}
		return provider.Device{}, fmt.Errorf("%w%s", p.err, hint)
	case !p.active:
		return provider.Device{}, fmt.Errorf("the port is %s", p.state)
	}
	g, err := chooseGID(p.reachable(opt), p.ethernet, opt.GIDIndex)
	if err != nil {
		return provider.Device{}, err
	}
	d := provider.Device{Provider: Name, Fabric: Name, Name: p.name(), Hardware: true, Mbps: p.mbps, NUMA: -1, Opaque: &entry{lib: lib, port: p, gid: g}}
	nets := []string{g.net}
	if r := m.Device(p.device); r != nil {
		nets, d.NUMA = append(nets, r.Nets...), r.NUMA
	}
	d.Addr, d.Subnet = opt.reach(g, p.ethernet, nets)
	if p.ethernet {
		d.Net = opt.netHere(g)
	}
	return d, nil
}

// reach returns the address of the port's interface, for the control channel, and the subnet that a peer must share. On
// InfiniBand the subnet is the GID's subnet prefix. The address is then that of an IPoIB interface, if there is one.
func (o Options) reach(g gid, ethernet bool, nets []string) (addr, subnet string) {
	own := g.addr.Unmap()
	if !ethernet {
		b := g.addr.As16()
		subnet = fmt.Sprintf("ib:%x", b[:8])
	}
	for _, name := range nets {
		for _, p := range o.prefixes(name) {
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

// noUsablePort returns the error for a machine without a usable port.
func noUsablePort(why []error) error {
	if len(why) == 0 {
		return fmt.Errorf("%w: no InfiniBand or RoCE device", provider.ErrNoDevice)
	}
	return fmt.Errorf("%w: %w", provider.ErrUnusable, reasons(why))
}

// reasons joins several errors on one line.
type reasons []error

func (r reasons) Error() string {
	var text []string
	for _, err := range r {
		text = append(text, err.Error())
	}
	return strings.Join(text, "; ")
}

func (r reasons) Unwrap() []error { return r }
