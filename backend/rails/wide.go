package rails

// A machine with more usable devices than max_rails is wide. All devices are known, and peers find them in the connection blob. Memory is
// registered on those that are near to it, at most max_rails. A device is opened when memory or a link first needs it.

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/backend/topo"
	"gorail/backend/wire"
)

// chooseWide finds the devices of a wide machine: all that are fit of the preferred fabric, with those that are local. nil: the machine is not wide.
func (s *Set) chooseWide(all []provider.Device, facts func(provider.Device) Facts) (now []provider.Device, left []Left) {
	fit, left := Choose(all, facts, ChooseOptions{Devices: s.opt.Devices, Fabrics: s.opt.Provider})
	out := nonLocal(fit)
	if len(out) == 0 {
		return nil, nil
	}
	first := out[0].Fabric
	of := slices.DeleteFunc(slices.Clone(out), func(d provider.Device) bool { return d.Fabric != first })
	if len(of) <= s.opt.MaxRails {
		return nil, nil
	}
	room := wire.MaxRails - (len(fit) - len(out))
	for _, d := range fit {
		switch local := d.Loopback || d.Host; {
		case local:
			now = append(now, d)
		case d.Fabric != first:
			left = append(left, Left{d, fmt.Sprintf("%d devices of %s are preferred", len(of), first)})
		case room == 0:
			left = append(left, Left{d, fmt.Sprintf("over the %d rails of an engine", wire.MaxRails)})
		default:
			d.Shards = 0 // as many rails as threads are there anyway
			now = append(now, d)
			room--
		}
	}
	return now, left
}

// Wide reports that memory is registered on some of the rails alone.
func (s *Set) Wide() bool { return s.wide }

// For returns the rails that memory at a place is registered on, as a bit mask. On a machine that is not wide these are all.
func (s *Set) For(at Place) uint64 {
	if !s.wide {
		return ^uint64(0)
	}
	if at.GPU == nil && at.Node < 0 {
		return s.home
	}
	return s.near(at)
}

// ForGPU is For for memory of a GPU. address gives the GPU's address on the PCI bus; it is called on wide machines alone.
func (s *Set) ForGPU(address func() string) uint64 {
	if !s.wide {
		return ^uint64(0)
	}
	gpu := address()
	return s.For(Place{GPU: s.machine.Path(gpu), Node: s.machine.FunctionNode(gpu)})
}

// at are the devices of a bit mask of rails.
func (s *Set) at(mask uint64) (out []provider.Device) {
	for i, r := range s.List {
		if mask&(1<<i) != 0 {
			out = append(out, r.Device())
		}
	}
	return nonLocal(out)
}

// used is how much of each device the other engines of this host use; nil: unknown.
func (s *Set) used() []float64 {
	if s.Used == nil {
		return nil
	}
	return s.Used()
}

// demand opens a rail when it is first needed.
type demand struct {
	mu    sync.Mutex
	open  func() error
	err   error
	again time.Time // after err: not before
}

// try opens the rail, or returns why it could not be opened a moment ago.
func (d *demand) try() error {
	if time.Now().Before(d.again) {
		return d.err
	}
	if d.err = d.open(); d.err != nil {
		d.again = time.Now().Add(mostJoin)
	}
	return d.err
}

// Idle reports that nothing has needed the rail so far: its device is not open.
func (r *Rail) Idle() bool { return r.late != nil && r.late.demand != nil && r.late.rail.Load() == nil }

// Need opens the rail's device unless it is open. The error is that of provider.Open.
func (r *Rail) Need() error {
	if r.late == nil || r.late.demand == nil {
		return nil
	}
	return r.late.need()
}

func (l *lateRail) need() error {
	if l.rail.Load() != nil {
		return nil
	}
	l.demand.mu.Lock()
	defer l.demand.mu.Unlock()
	if l.rail.Load() != nil {
		return nil
	}
	return l.demand.try()
}

// openWide opens the rails of a wide machine: those that are local, and the first of the process's own devices that opens. The others are
// opened on demand.
func (s *Set) openWide(devices []provider.Device, m *topo.Machine) (left []Left, last error) {
	at := Place{Node: ownNode(os.DirFS("/sys"))}
	own := s.choose(at, devices, paths(devices, m))
	order := slices.Clone(own)
	for i := range devices {
		if !slices.Contains(own, i) {
			order = append(order, i)
		}
	}
	opened := map[int]provider.Rail{}
	var like provider.Rail // of the devices that leave the host
	for _, i := range order {
		d := devices[i]
		if local := d.Loopback || d.Host; !local && like != nil {
			continue
		}
		r, err := s.prov.Open(d)
		if err != nil {
			left, last = append(left, s.notOpened(d, err)), err
			continue
		}
		if opened[i] = r; !d.Loopback && !d.Host {
			like = r
		}
	}
	for i, d := range devices {
		var err error
		switch r := opened[i]; {
		case r != nil:
			err = s.add(r)
		case like != nil && !d.Loopback && !d.Host:
			err = s.addOnDemand(d, like.Caps())
		}
		if err != nil {
			return left, err
		}
	}
	s.paths, s.machine = paths(s.Devices(), m), m
	if len(s.List) < len(devices) {
		own = s.choose(at, s.Devices(), s.paths)
	}
	s.home = maskOf(own)
	s.chosen.Store(at.String(), s.home)
	return left, last
}

func paths(devices []provider.Device, m *topo.Machine) []topo.PCIPath {
	out, facts := make([]topo.PCIPath, len(devices)), FactsOf(m)
	for i, d := range devices {
		out[i] = facts(d).PCI
	}
	return out
}

// ownNode is the NUMA node that has all processors which this process may use; -1: there are several.
func ownNode(sys fs.FS) int {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return -1
	}
	for _, n := range topo.Nodes(sys) {
		in := 0
		for _, cpu := range n.CPUs {
			if set.IsSet(cpu) {
				in++
			}
		}
		if in > 0 {
			if in == set.Count() {
				return n.ID
			}
			return -1
		}
	}
	return -1
}

// addOnDemand adds a rail that opens when it is first needed. caps are those of an open rail of the fabric.
func (s *Set) addOnDemand(d provider.Device, caps provider.Caps) error {
	l := &lateRail{dev: d, caps: caps, demand: &demand{}}
	rs, err := s.addReserved(l)
	if err != nil {
		return err
	}
	l.demand.open = func() error {
		opened, err := s.prov.Open(d)
		if err != nil {
			return err
		}
		if err := s.install(rs, opened); err != nil {
			return err
		}
		l.up.Store(true)
		s.notes(opened)
		s.log.Info("rail opened", "rail", rs.Name())
		if s.Opened != nil {
			s.Opened(rs)
		}
		return nil
	}
	return nil
}
