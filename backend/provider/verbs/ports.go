package verbs

import (
	"errors"
	"fmt"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
)

// port is one port of a device, as the library sees it.
type port struct {
	device                  string
	number                  int
	iwarp, ethernet, active bool
	state                   string
	gids                    int
	mbps                    uint64
	err                     *clib.CallError // what kept it from being asked; all but device, number and iwarp is unset then
}

// scan is all ports of all devices. Devices of other kinds (EFA) are left out; none is no error.
func (l *library) scan() ([]port, error) {
	list, free, err := l.deviceList()
	if err != nil {
		if errors.Is(err, syscall.ENOSYS) { // no RDMA in this kernel
			return nil, nil
		}
		return nil, fmt.Errorf("%w: %w%s", provider.ErrUnusable, err, limit(clib.As(err).Errno))
	}
	defer free()
	var ports []port
	for _, d := range list {
		if _, transport := deviceName(d); transport == transportIB || transport == transportIWarp {
			ports = append(ports, l.portsOf(d)...)
		}
	}
	return ports, nil
}

// portsOf is a device's ports; one that can't be opened or asked is taken to have one.
func (l *library) portsOf(d *ibvDevice) (ports []port) {
	count := 1
	ctx, err := l.openDevice(d)
	if err == nil {
		defer l.closeDevice(ctx)
		var a deviceAttr
		if a, err = l.queryDevice(ctx); err == nil {
			count = a.ports
		}
	}
	name, transport := deviceName(d)
	for n := 1; n <= count; n++ {
		p := port{device: name, number: n, iwarp: transport == transportIWarp}
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
func (p *port) ask(l *library, ctx *ibvContext) {
	a, err := l.queryPort(ctx, p.number)
	if err != nil {
		p.err = clib.As(err)
		return
	}
	p.ethernet, p.active, p.gids, p.mbps, p.state = a.ethernet, a.state == portActive, a.gids, a.mbps(), "unknown"
	if states := []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}; a.state < len(states) {
		p.state = states[a.state]
	}
}

// laneMbps is what passes a lane after encoding, by the code of its speed; lanes is their number, by that of the width.
var (
	laneMbps = map[uint8]uint64{1: 2000, 2: 4000, 4: 8000, 8: 10_000, 16: 13_600, 32: 25_000, 64: 50_000, 128: 100_000}
	lanes    = map[uint8]uint64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
)

// mbps is 0 for a speed that nobody knows; a width that nobody knows is one lane.
func (a portAttr) mbps() uint64 { return laneMbps[a.speed] * max(lanes[a.width], 1) }
