package engine

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/peer"
	"gorail/backend/provider"
	"gorail/backend/topo"
)

// openControl listens on the first port of the option control_port that is free on all addresses.
func (e *Engine) openControl(m *topo.Machine) error {
	local := localAddrs(e.rails.Nets())
	addrs := controlAddrs(e.rails.Devices(), local, m, e.opt.ControlDevices)
	if len(addrs) == 0 {
		return errcode.NoControlAddress.Errorf("control channel: no interface with an address matches option control_devices=%v", e.opt.ControlDevices)
	}
	ports := e.opt.ControlPort
	for port := int(ports.First); ; port++ {
		var listen, later []string
		for _, a := range addrs {
			to := net.JoinHostPort(a.String(), strconv.Itoa(port))
			if slices.ContainsFunc(local, func(l ifaceAddr) bool { return l.addr == a && l.down }) {
				later = append(later, to)
			} else {
				listen = append(listen, to)
			}
		}
		var err error
		e.node, err = peer.NewNode(peer.Config{Identity: e.blob, Key: e.key, Operator: e.operator, CertifiedNames: e.opt.CertifiedNames,
			PeerTimeout: e.opt.PeerTimeout, ConnectTimeout: e.opt.ConnectTimeout, MaxSessions: e.opt.MaxSessions,
			Limits: &e.limits, Heard: e.stir.peer, CloseInForks: core.CloseInForks, Listen: listen, Later: later, Log: e.log}, e.targets)
		if err == nil {
			e.targets.SetNode(e.node)
			return nil
		}
		e.node = nil
		if !errors.Is(err, syscall.EADDRINUSE) || port >= int(ports.Last) {
			return errcode.NoControlPort.Errorf("control channel (option control_port=%d-%d): %w", ports.First, ports.Last, err)
		}
	}
}

// ifaceAddr is one address of a network interface.
type ifaceAddr struct {
	name string
	addr netip.Addr
	down bool // the interface is down
}

func localAddrs(nets []topo.Interface) (list []ifaceAddr) {
	for _, i := range nets {
		for _, p := range i.Addrs {
			list = append(list, ifaceAddr{i.Name, p.Addr().Unmap(), !i.Up})
		}
	}
	return list
}

// mostControl is the maximum number of addresses to listen on. The connection blob has room for more.
const mostControl = 32

// controlAddrs returns the addresses that peers get, best first. Without control_devices these are the addresses of the
// rails. Hardware rails without an address (EFA, CXI, InfiniBand without IPoIB) add the addresses of the machine's other
// networks. Loopback is added for such rails, and if there is no address at all. With control_devices (want), only the
// addresses of matching interfaces are returned.
func controlAddrs(rails []provider.Device, local []ifaceAddr, m *topo.Machine, want []string) (addrs []netip.Addr) {
	add := func(a netip.Addr) {
		if a.IsValid() && !slices.Contains(addrs, a) && len(addrs) < mostControl {
			addrs = append(addrs, a)
		}
	}
	if len(want) > 0 {
		for _, l := range local {
			if topo.Patterns(want).Judge(-1, l.name) == topo.Named && !l.addr.IsLinkLocalUnicast() {
				add(l.addr)
			}
		}
		return addrs
	}
	other := false
	for _, d := range rails {
		if a, err := netip.ParseAddr(d.Addr); err == nil {
			add(a)
		} else {
			other = other || d.Hardware
		}
	}
	for _, l := range local {
		if !other || l.down || !l.addr.IsGlobalUnicast() {
			continue
		}
		if n := m.Net(l.name); n == nil || n.Up() && !n.Bridge && !n.Tunnel && n.PortOf == "" {
			add(l.addr)
		}
	}
	if other || len(addrs) == 0 {
		add(netip.AddrFrom4([4]byte{127, 0, 0, 1})) // peers in this network namespace
	}
	return addrs
}
