package verbs

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/verbs/ibverbs"
)

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

// entry is a port that can become a rail.
type entry struct {
	lib  *ibverbs.Library
	port port
	gid  gid
}
