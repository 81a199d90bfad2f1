package rails

// A machine with more usable devices than max_rails is wide. All devices are known, and peers find them in the connection blob. Memory is
// registered on those that are near to it, at most max_rails. A device is opened when memory or a link first needs it.

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// chooseWide finds the devices of a wide machine: all that are fit of the preferred fabric, with those that are local, and those of that fabric that are
// down. nil: the machine is not wide. The devices that are up decide that.
func (s *Set) chooseWide(all []provider.Device, facts func(provider.Device) Facts) (now, late []provider.Device, left []Left) {
	fit, left := Choose(all, facts, ChooseOptions{Devices: s.opt.Devices, Fabrics: s.opt.Provider})
	out := nonLocal(fit)
	if len(out) == 0 {
		return nil, nil, nil
	}
	first, best := out[0].Fabric, uint64(0)
	for _, d := range out {
		if d.Fabric == first {
			best = max(best, d.Mbps)
		}
	}
	of := slices.DeleteFunc(slices.Clone(out), func(d provider.Device) bool { return d.Fabric != first || slow(d, best) })
	if len(of) <= s.opt.MaxRails {
		return nil, nil, nil
	}
	room := MostDevices
	for _, d := range fit {
		switch {
		case local(d):
			now = append(now, d)
		case d.Fabric != first:
			left = append(left, Left{d, fmt.Sprintf("%d devices of %s are preferred", len(of), first)})
		case slow(d, best):
			left = append(left, Left{d, speed(d.Mbps) + " beside " + speed(best)})
		case room == 0:
			left = append(left, Left{d, fmt.Sprintf("over the %d devices of an engine", MostDevices)})
		default:
			d.Shards = 0 // as many rails as threads are there anyway
			now = append(now, d)
			room--
		}
	}
	for _, d := range s.waiting(all, facts, withoutSpeed) {
		if d.Fabric == first && room > 0 {
			d.Shards = 0
			late = append(late, d)
			room--
		}
	}
	return now, late, left
}

// withoutSpeed leaves out the speed of a port that is down: sysfs shows 40 Gb/s of a faster port (topo/testdata/dgx-spark.txt).
func withoutSpeed(d provider.Device, f Facts) Facts {
	if f.Down || d.Waits != "" {
		f.Mbps = 0
	}
	return f
}

// slow reports that a device is not of the fastest class: its storage or management card, perhaps.
func slow(d provider.Device, best uint64) bool { return d.Mbps > 0 && 4*d.Mbps < 3*best }

// Seat is the place of the process's processors.
func (s *Set) Seat() Place { return s.seat }

// Wide reports that memory is registered on some of the rails alone.
func (s *Set) Wide() bool { return s.wide }

// For returns the rails that memory at a place is registered on, as a bit mask. On a machine that is not wide these are all.
func (s *Set) For(at Place) uint64 {
	if !s.wide {
		return ^uint64(0)
	}
	switch {
	case at.GPU != nil:
		return s.openNear(at)
	case at.Node < 0:
		return s.opens(s.home.Load()) | s.common
	}
	return s.openNear(at) | s.common
}

// openNear opens the rails for memory at a place. Others take the place of those whose device is of another kind than the machine's others.
func (s *Set) openNear(at Place) (mask uint64) {
	for range len(s.List) { // each round leaves out a device for good
		chosen := s.near(at)
		if mask = s.opens(chosen); chosen&s.Unfit() == 0 {
			break
		}
		s.replace(at)
	}
	return mask
}

// opens are the rails of a bit mask whose devices open; those that all host memory is on if none does.
func (s *Set) opens(on uint64) (mask uint64) {
	away := uint64(0)
	for _, i := range railsIn(on) {
		if err := s.List[i].Need(); err != nil {
			s.cannot(s.List[i], err)
			continue
		}
		if mask |= 1 << i; !local(s.List[i].Device()) {
			away |= 1 << i
		}
	}
	if away == 0 {
		mask |= s.common
	}
	return mask
}

// Common reports that all host memory is on a rail, wherever it is: so a transfer from several places has rails, and sessions begin on them.
func (s *Set) Common(i int) bool { return !s.wide || s.common&(1<<i) != 0 }

// settle makes rails those of host memory near to the process, and of host memory whose place is unknown.
func (s *Set) settle(home uint64) {
	s.home.Store(home)
	s.chosen.Store(s.seat.String(), home)
}

// Widen finds more rails for host memory, and opens them: devices near to the process that other engines of this host have left, until 2*max_rails are in
// use; or, if those in use are all down, max_rails others, near ones first. Before, it gives such rails back. The caller registers the memory. One
// goroutine at a time calls it.
func (s *Set) Widen() (more []*Rail) {
	used := s.used()
	s.giveBack(used)
	var list []int
	switch {
	case !s.works(s.home.Load()):
		list = s.anywhere(s.seat)
		s.alone(s.Devices(), s.paths, func([]float64) { s.noteHome(list) })
	case s.home.Load()&s.Unfit() != 0:
		s.settle(s.home.Load() &^ s.Unfit())
		list = s.replacing(s.seat, s.home.Load())
	case len(s.idle(used)) > 0: // a cheap look. Several engines look at once, and each takes a half of what is left
		s.alone(s.Devices(), s.paths, func(used []float64) {
			list = s.idle(used)
			list = list[:(len(list)+1)/2]
			s.noteHome(list)
		})
	}
	return append(s.open(list), s.relieve()...)
}

// noteHome notes the rails of host memory, and those of a list.
func (s *Set) noteHome(more []int) {
	s.note(s.seat, s.Devices(), s.paths, append(railsIn(s.home.Load()), more...))
}

// giveBack leaves rails that Widen has taken to an engine that uses them now. Memory that is registered on them stays.
func (s *Set) giveBack(used []float64) {
	home, extra := s.home.Load(), uint64(0)
	for _, i := range railsIn(home &^ (s.own | s.granted)) {
		if used != nil && used[i] > 0 {
			extra |= 1 << i
		}
	}
	if extra == 0 || !s.works(s.own) {
		return
	}
	s.settle(home &^ extra)
	s.alone(s.Devices(), s.paths, func([]float64) { s.noteHome(nil) })
}

// Want asks for rails that host memory needs to reach a peer's, as a bit mask. It does not wait.
func (s *Set) Want(on uint64) {
	s.wanted.Or(on)
	select {
	case s.Wishes <- struct{}{}:
	default:
	}
}

// Grant adds the rails that were wanted to those of host memory, and opens them. As Widen.
func (s *Set) Grant() []*Rail {
	list := slices.DeleteFunc(railsIn(s.wanted.Swap(0)), s.taken)
	list = list[:min(len(list), s.room())]
	s.granted |= maskOf(list)
	return s.open(list)
}

// room is how many more rails host memory may have.
func (s *Set) room() int { return max(0, 2*s.opt.MaxRails-len(s.at(s.home.Load()))) }

// open opens rails for host memory.
func (s *Set) open(list []int) (more []*Rail) {
	home := s.home.Load()
	for _, i := range list {
		if err := s.List[i].Need(); err != nil {
			s.cannot(s.List[i], err)
			continue
		}
		more, home = append(more, s.List[i]), home|1<<i
	}
	s.settle(home)
	return more
}

// works reports that one of the rails of a bit mask works.
func (s *Set) works(on uint64) bool {
	return slices.ContainsFunc(railsIn(on), func(i int) bool { return !local(s.List[i].Device()) && s.List[i].may() && !s.List[i].Down.Load() })
}

// Others are the rails that other engines of this host use, or have used, as far as Widen has seen: a bit mask.
func (s *Set) Others() uint64 { return s.others.Load() }

// idle are near rails that other engines have left: they used them, and none does any more.
func (s *Set) idle(used []float64) []int {
	for i := range used {
		if used[i] > 0 {
			s.others.Or(1 << i)
		}
	}
	list := slices.DeleteFunc(Nearest(s.Devices(), s.paths, s.seat, len(s.List), nil), func(i int) bool {
		return s.taken(i) || used == nil || used[i] > 0 || s.Others()&(1<<i) == 0
	})
	return list[:min(len(list), s.room())]
}

// anywhere are rails for host memory at a place that has none which works, near ones first.
func (s *Set) anywhere(at Place) (list []int) {
	list = slices.DeleteFunc(thenRest(Nearest(s.Devices(), s.paths, at, len(s.List), nil), len(s.List)), s.taken)
	return list[:min(len(list), s.opt.MaxRails)]
}

// thenRest returns the numbers below n, those of a list first.
func thenRest(list []int, n int) []int {
	out := slices.Clone(list)
	for i := range n {
		if !slices.Contains(list, i) {
			out = append(out, i)
		}
	}
	return out
}

// taken reports that host memory has a rail already, or cannot have it.
func (s *Set) taken(i int) bool {
	r := s.List[i]
	return s.home.Load()&(1<<i) != 0 || local(r.Device()) || r.Down.Load() || !r.may()
}

// railsIn are the rails of a bit mask.
func railsIn(mask uint64) (out []int) {
	for ; mask != 0; mask &= mask - 1 {
		out = append(out, bits.TrailingZeros64(mask))
	}
	return out
}

// ForGPU is For for memory of a GPU. address gives the GPU's address on the PCI bus; it is called on wide machines alone.
func (s *Set) ForGPU(address func() string) uint64 {
	if !s.wide {
		return ^uint64(0)
	}
	gpu := address()
	return s.opens(s.near(Place{GPU: s.machine.Path(gpu), Node: s.machine.FunctionNode(gpu)}))
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
	unfit atomic.Bool
}

// try opens the rail, or returns why it could not be opened a moment ago. A device of another kind is not tried again.
func (d *demand) try() error {
	if d.unfit.Load() || time.Now().Before(d.again) {
		return d.err
	}
	if d.err = d.open(); d.err != nil {
		d.again = time.Now().Add(mostJoin)
		d.unfit.Store(errors.Is(d.err, errUnfit))
	}
	return d.err
}

// rests reports that the rail did not open a moment ago.
func (d *demand) rests() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Before(d.again)
}

// Idle reports that nothing has needed the rail so far: its device is not open.
func (r *Rail) Idle() bool { return r.late != nil && r.late.demand != nil && r.late.rail.Load() == nil }

// Need opens the rail's device unless it is open. The error is that of provider.Open.
func (r *Rail) Need() error {
	if r.late == nil {
		return nil
	}
	return r.late.need()
}

func (l *lateRail) need() error {
	switch {
	case l.demand == nil || l.rail.Load() != nil:
		return nil
	case !l.up.Load():
		return errNoCarrier
	}
	l.demand.mu.Lock()
	defer l.demand.mu.Unlock()
	if l.rail.Load() != nil {
		return nil
	}
	return l.demand.try()
}

// openWide opens the rails of a wide machine: those that are local, and the first of the process's own devices that opens. The others are
// opened on demand, those of late after they have come up.
func (s *Set) openWide(now, late []provider.Device, m *topo.Machine) (left []Left, last error) {
	if file := topo.NCCLFile(os.LookupEnv); file != "" {
		if err := m.NestFile(file); err != nil {
			s.log.Info("places of devices are those of /sys alone", "err", err)
		}
	}
	at, devices := Place{Node: ownNode(s.Sys)}, s.inOrder(append(slices.Clone(now), late...), m)
	waits := func(i int) bool {
		return slices.ContainsFunc(late, func(d provider.Device) bool { return Name(d) == Name(devices[i]) })
	}
	s.out = waits
	own := s.choose(at, devices, Paths(devices, m))
	opened, failed := map[int]provider.Rail{}, map[int]error{}
	var like provider.Rail // of the devices that leave the host
	for _, i := range thenRest(own, len(devices)) {
		d := devices[i]
		if !local(d) && (like != nil || waits(i)) {
			continue
		}
		r, err := s.prov.Open(d)
		if err != nil {
			left, last = append(left, s.notOpened(d, err)), err
			failed[i] = err
			continue
		}
		if opened[i] = r; !local(d) {
			like = r
		}
	}
	for i, d := range devices {
		var err error
		switch r := opened[i]; {
		case r != nil:
			err = s.add(r)
		case like != nil && !local(d):
			err = s.addOnDemand(d, like.Caps(), waits(i), failed[i])
		}
		if err != nil {
			return left, err
		}
	}
	s.paths, s.machine, s.seat = Paths(s.Devices(), m), m, at
	s.out = func(i int) bool { return !s.List[i].may() }
	if len(s.List) < len(devices) {
		own = s.choose(at, s.Devices(), s.paths)
	}
	s.own = maskOf(own)
	s.settle(s.own)
	s.common = maskOf(s.commonOf(own))
	return left, last
}

// mostCommon is how many rails all host memory of a wide machine is on: one more than it takes, for its failure.
const mostCommon = 2

// commonOf are the first of the process's own rails, open ones before others, and those that are local.
func (s *Set) commonOf(own []int) (list []int) {
	left := mostCommon
	for _, open := range []bool{true, false} {
		for _, i := range own {
			switch r := s.List[i]; {
			case local(r.Device()):
				list = append(list, i)
			case left > 0 && !r.Idle() == open:
				list, left = append(list, i), left-1
			}
		}
	}
	return list
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

// addOnDemand adds a rail that opens when it is first needed. caps are those of an open rail of the fabric. waits: its device is down, and may not be
// opened. failed: it did not open a moment ago.
func (s *Set) addOnDemand(d provider.Device, caps provider.Caps, waits bool, failed error) error {
	l := &lateRail{dev: d, caps: caps, demand: &demand{}}
	if waits {
		l = joining(d, caps, l.demand)
	}
	rs, err := s.addReserved(l)
	if err != nil {
		return err
	}
	l.up.Store(!waits)
	if failed != nil {
		l.demand.err, l.demand.again = failed, time.Now().Add(mostJoin)
		rs.First(doesNotOpen(failed))
	}
	l.demand.open = func() error {
		opened, err := s.prov.Open(l.Device())
		if err != nil {
			return err
		}
		if err := s.install(rs, opened); err != nil {
			return err
		}
		s.notes(opened)
		s.log.Info("rail opened", "rail", rs.Name())
		if s.Opened != nil {
			s.Opened(rs)
		}
		return nil
	}
	return nil
}
