package rails

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"unsafe"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/topo"
)

// errNoCarrier is the error of a late rail that is not up yet.
var errNoCarrier = errors.New("the network interface, or the RDMA port, is down or has no carrier")

// lateRail is a rail that was not opened with the engine: nothing needed it (wide.go), or its network interface or RDMA port was down. Peers know of
// it from the start. When the interface comes up, the rail is opened, then memory is registered on it, and then it opens
// endpoints.
type lateRail struct {
	dev  provider.Device
	caps provider.Caps // of an open rail of the same fabric
	rail atomic.Pointer[provider.Rail]
	up   atomic.Bool   // all memory is registered; of a wide machine: the device may be opened
	wake chan struct{} // nil: its interface was up when the engine was made

	demand *demand                         // of a rail that is opened when it is first needed; nil: it is opened when its interface comes up
	found  atomic.Pointer[provider.Device] // the device as it was when it came up, if demand opens it
}

// joining returns a rail whose device is down. open opens its device when memory needs it; nil: when it comes up.
func joining(d provider.Device, caps provider.Caps, open *demand) *lateRail {
	return &lateRail{dev: d, caps: caps, wake: make(chan struct{}, 1), demand: open}
}

var _ provider.Rail = (*lateRail)(nil)

func (l *lateRail) Caps() provider.Caps { return l.caps }
func (l *lateRail) Notes() []string     { return nil }

// Inner is the provider's rail after it is open. Before that it is the lateRail.
func (r *Rail) Inner() provider.Rail {
	if r.late != nil {
		if p := r.late.rail.Load(); p != nil {
			return *p
		}
	}
	return r.Rail
}

func (l *lateRail) Device() provider.Device {
	if r := l.rail.Load(); r != nil {
		return (*r).Device() // its address may have changed
	}
	if d := l.found.Load(); d != nil {
		return *d
	}
	return l.dev
}

func (l *lateRail) Core() unsafe.Pointer {
	if r := l.rail.Load(); r != nil {
		return (*r).Core()
	}
	return nil
}

func (l *lateRail) OpenEndpoint() (provider.Endpoint, error) {
	if err := l.need(); err != nil {
		return nil, fmt.Errorf("%w: %w", provider.ErrEndpoint, err)
	}
	if !l.up.Load() {
		return nil, fmt.Errorf("%w: %w", provider.ErrEndpoint, errNoCarrier)
	}
	return (*l.rail.Load()).OpenEndpoint()
}

func (l *lateRail) Register(addr, length, key uint64, peers option.Rights) (provider.MR, error) {
	if err := l.need(); err != nil {
		return nil, fmt.Errorf("%w: %w", provider.ErrRegister, err)
	}
	if r := l.rail.Load(); r != nil {
		return (*r).Register(addr, length, key, peers)
	}
	return nil, fmt.Errorf("%w: %w", provider.ErrRegister, errNoCarrier)
}

func (l *lateRail) Later(addr, length uint64) bool {
	r := l.rail.Load()
	return r != nil && (*r).Later(addr, length)
}

func (l *lateRail) Close() error {
	if r := l.rail.Load(); r != nil {
		return (*r).Close()
	}
	return nil
}

// Opened returns true if memory can be registered on the rail.
func (r *Rail) Opened() bool {
	return !r.Joins() || r.late.rail.Load() != nil || r.late.demand != nil && r.late.up.Load()
}

// Waits returns true if the rail's interface has not come up since the engine was made.
func (r *Rail) Waits() bool { return r.Joins() && !r.late.up.Load() }

// netInterfaces asks the kernel: /sys may belong to another network namespace.
func netInterfaces() []topo.Interface {
	list, _ := topo.Interfaces()
	return list
}

// sockets returns true if the device runs over the kernel's IP stack.
func sockets(d provider.Device) bool { return !d.Hardware && !d.Host && d.Addr != "" }

// isLoopback returns true if the device is the loopback interface.
func (s *Set) isLoopback(d provider.Device) bool {
	return sockets(d) && slices.ContainsFunc(s.Nets(), func(i topo.Interface) bool { return i.Loopback && i.Name == d.Name })
}

// downDevices returns interfaces that are down, as devices of the fabric of the found sockets. An interface without an
// address is included only if the option devices names it, because its network is unknown.
func downDevices(found []provider.Device, local []topo.Interface, want []string) (down []provider.Device) {
	like := slices.IndexFunc(found, sockets)
	if like < 0 {
		return nil
	}
	for _, i := range local {
		if i.Up || i.Loopback || slices.ContainsFunc(found, func(d provider.Device) bool { return d.Name == i.Name }) {
			continue
		}
		d := provider.Device{Provider: found[like].Provider, Fabric: found[like].Fabric, Name: i.Name, NUMA: -1, Shards: found[like].Shards}
		for _, p := range i.Addrs {
			if a := p.Addr(); a.IsGlobalUnicast() && (d.Addr == "" || a.Is4() && netip.MustParseAddr(d.Addr).Is6()) {
				d.Addr, d.Subnet = a.String(), p.Masked().String()
			}
		}
		if d.Addr != "" || topo.Patterns(want).Judge(-1, i.Name) == topo.Named {
			down = append(down, d)
		}
	}
	return down
}

// Choose selects the devices to open now, and the devices to open when they come up.
func (s *Set) Choose(found []provider.Device, m *topo.Machine) (now, late []provider.Device, left []Left) {
	down := downDevices(found, s.Nets(), s.opt.Devices)
	known := map[string]Facts{} // a bridge of containers has a thousand ports to look at
	facts := func(d provider.Device) Facts {
		name := Name(d)
		f, ok := known[name]
		if !ok {
			f = FactsOf(m)(d)
			f.Down = f.Down || slices.ContainsFunc(down, func(o provider.Device) bool { return o.Name == d.Name && o.Fabric == d.Fabric })
			known[name] = f
		}
		return f
	}
	opt := ChooseOptions{Devices: s.opt.Devices, Fabrics: s.opt.Provider, MaxRails: s.opt.MaxRails, Slots: s.opt.Slots()}
	all := append(slices.Clone(found), down...)
	if now, late, left = s.chooseWide(all, facts); now != nil {
		s.wide = true
		return now, late, left
	}
	now, left = Choose(all, facts, opt)
	late = s.waiting(all, facts, func(_ provider.Device, f Facts) Facts { return f })
	room := min(opt.MaxRails-len(nonLocal(now)), opt.Slots-len(now))
	return now, late[:max(0, min(len(late), room))], left
}

// waiting are the devices that are down now, and would be rails if all were up. known are facts of a device that would be so.
func (s *Set) waiting(all []provider.Device, facts func(provider.Device) Facts, known func(provider.Device, Facts) Facts) (late []provider.Device) {
	could := slices.Clone(all)
	at := make(map[string]int, len(all)) // of the first of a name
	for i := range slices.Backward(could) {
		could[i].Waits = ""
		at[Name(could[i])] = i
	}
	fit, _ := Choose(could, func(d provider.Device) Facts {
		f := known(all[at[Name(d)]], facts(d))
		f.Down = false
		return f
	}, ChooseOptions{Devices: s.opt.Devices, Fabrics: s.opt.Provider})
	for _, d := range fit {
		if s.mayJoin(all[at[Name(d)]], facts(d).Down) {
			late = append(late, d)
		}
	}
	return late
}

// mayJoin returns true if a device is down and worth waiting for. An RDMA port without a subnet is worth waiting for
// only if the option devices names it.
func (s *Set) mayJoin(d provider.Device, down bool) bool {
	switch {
	case local(d):
		return false
	case d.Hardware && d.Waits != "":
		return d.Subnet != "" || topo.Patterns(s.opt.Devices).Judge(-1, d.Name) == topo.Named
	}
	return down // of hardware: its library lists it, and sysfs says that it is down
}

// local reports that a device does not reach other network namespaces, or serves this host alone.
func local(d provider.Device) bool { return d.Loopback || d.Host }

// nonLocal are the devices that reach other network namespaces.
func nonLocal(devices []provider.Device) (out []provider.Device) {
	for _, d := range devices {
		if !local(d) {
			out = append(out, d)
		}
	}
	return out
}

// addLate adds a rail of an interface that is down, unless no rail of the same fabric is open.
func (s *Set) addLate(d provider.Device) error {
	like := slices.IndexFunc(s.List, func(r *Rail) bool { return r.Device().Provider == d.Provider && r.Device().Fabric == d.Fabric })
	if like < 0 {
		return nil
	}
	_, err := s.addReserved(joining(d, *s.List[like].Can(), nil))
	return err
}

// logRails logs the rails in use, and warns of results that an operator may not expect.
func (s *Set) logRails(left []Left) {
	for i, l := range left {
		if slices.ContainsFunc(s.List, func(r *Rail) bool { return r.Joins() && r.Name() == Name(l.Device) }) {
			left[i].Reason += "; joins when it comes up"
		}
	}
	var open []provider.Device
	for _, r := range s.List {
		if !r.Joins() && r.Device().Shard == 0 {
			open = append(open, r.Device())
		}
	}
	s.log.Debug("network interfaces", "count", len(s.Nets()), "dumps", topo.Dumps())
	s.log.Info("rails", "version", s.Version, "used", Names(open), "left_out", Reasons(left))
	if s.wide {
		s.log.Info("more devices than max_rails: memory is registered on those near to it, and devices are opened when memory needs them", "devices", len(nonLocal(open)),
			"max_rails", s.opt.MaxRails, "near", Names(s.at(s.home.Load())))
	}
	if s.wide && s.opt.QPsPerRail > 1 {
		s.log.Warn("option qps_per_rail has no effect: a session of a machine with more devices than max_rails has one link on a pair of rails", "qps_per_rail", s.opt.QPsPerRail,
			"max_rails", s.opt.MaxRails, "advice", "leave qps_per_rail out, or raise max_rails to the number of devices")
	}
	for fabric, n := range OverLimit(left) { // of several fabrics or classes: else the machine is wide
		used := len(slices.DeleteFunc(nonLocal(open), func(d provider.Device) bool { return d.Fabric != fabric }))
		s.log.Warn("more devices than max_rails: the others, of another fabric or slower, are not used", "fabric", fabric,
			"used", used, "of", used+n, "max_rails", s.opt.MaxRails, "advice", "raise option max_rails, or name the devices by option devices")
	}
	if len(nonLocal(open)) == 0 && slices.ContainsFunc(open, s.isLoopback) && s.wantsOtherHosts() {
		s.log.Warn("only agents of this host and network namespace can be reached: the loopback interface is the only usable network interface",
			"used", Names(open), "left_out", Reasons(left), "advice", "bring a network interface up; if only this host is intended, set option devices=lo or provider=sm")
	}
}

// wantsOtherHosts returns true if the options permit rails to other hosts.
func (s *Set) wantsOtherHosts() bool {
	named := func(r *Rail) bool { return topo.Patterns(s.opt.Devices).Judge(-1, r.Device().Name) == topo.Named }
	return !slices.ContainsFunc(s.List, named) && slices.ContainsFunc(s.opt.Provider, func(p string) bool { return p != "sm" && p != "shm" })
}
