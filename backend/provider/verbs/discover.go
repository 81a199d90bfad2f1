package verbs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
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
	d := provider.Device{Provider: provider.Verbs, Fabric: provider.Verbs, Name: p.name(), Hardware: true, NUMA: -1, Waits: why.Error()}
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
	d := provider.Device{Provider: provider.Verbs, Fabric: provider.Verbs, Name: p.name(), Hardware: true, Mbps: p.mbps, NUMA: -1, Opaque: &entry{lib: lib, port: p, gid: g}}
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

// port is one port of a device, as the library sees it.
type port struct {
	device                  string
	number                  int
	iwarp, ethernet, active bool
	state                   string
	gids                    int
	mbps                    uint64
	err                     *clib.CallError // why the port could not be queried; then only device, number and iwarp are set
}

// name returns the device's name, with the port's number if it is not 1.
func (p port) name() string {
	if p.number > 1 {
		return fmt.Sprintf("%s:%d", p.device, p.number)
	}
	return p.device
}

// scan returns all ports of all InfiniBand and RoCE devices, and of iWARP devices, which are not used. Other devices (EFA) are skipped. A machine without
// devices is no error.
func scan(l *ibverbs.Library) ([]port, error) {
	list, free, err := l.DeviceList()
	if err != nil {
		if errors.Is(err, syscall.ENOSYS) { // the kernel has no RDMA
			return nil, nil
		}
		return nil, fmt.Errorf("%w: %w%s", provider.ErrUnusable, err, limit(clib.As(err).Errno))
	}
	defer free()
	var ports []port
	for _, d := range list {
		if _, transport := ibverbs.DeviceName(d); transport == ibverbs.TransportIB || transport == ibverbs.TransportIWarp {
			ports = append(ports, portsOf(l, d)...)
		}
	}
	return ports, nil
}

// portsOf returns a device's ports. A device that cannot be opened or queried counts as one port.
func portsOf(l *ibverbs.Library, d *ibverbs.Device) (ports []port) {
	count := 1
	ctx, err := l.OpenDevice(d)
	if err == nil {
		defer func() { _ = l.CloseDevice(ctx) }() // nothing was made of it
		var a ibverbs.DeviceAttr
		if a, err = l.QueryDevice(ctx); err == nil {
			count = a.Ports
		}
	}
	name, transport := ibverbs.DeviceName(d)
	for n := 1; n <= count; n++ {
		p := port{device: name, number: n, iwarp: transport == ibverbs.TransportIWarp}
		if err != nil {
			p.err = clib.As(err)
		} else {
			p.ask(l, ctx)
		}
		ports = append(ports, p)
	}
	return ports
}

// ask implements ibv_query_port.
func (p *port) ask(l *ibverbs.Library, ctx *ibverbs.Context) {
	a, err := l.QueryPort(ctx, p.number)
	if err != nil {
		p.err = clib.As(err)
		return
	}
	p.ethernet, p.active, p.gids, p.mbps, p.state = a.Ethernet, a.State == ibverbs.PortActive, a.GIDs, mbps(a), "unknown"
	if states := []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}; a.State < len(states) {
		p.state = states[a.State]
	}
}

// laneMbps is the data rate of one lane after encoding, by speed code; lanes is the number of lanes, by width code.
var (
	laneMbps = map[uint8]uint64{1: 2000, 2: 4000, 4: 8000, 8: 10_000, 16: 13_600, 32: 25_000, 64: 50_000, 128: 100_000}
	lanes    = map[uint8]uint64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
)

// mbps returns the port's rate; 0 for an unknown speed code. An unknown width code counts as one lane.
func mbps(a ibverbs.PortAttr) uint64 { return laneMbps[a.Speed] * max(lanes[a.Width], 1) }

// reachable returns the port's GID table without entries of other network namespaces. In a container the table may be
// the host's.
func (p port) reachable(o Options) []gid {
	all := readGIDs(o.Sys, p.device, p.number, p.gids)
	here := slices.DeleteFunc(slices.Clone(all), func(g gid) bool { return o.netHere(g) == "" })
	if p.ethernet && o.GIDIndex < 0 && len(here) > 0 {
		return here
	}
	return all
}
