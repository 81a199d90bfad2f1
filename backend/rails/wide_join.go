package rails

// Devices of a wide machine that are down when the engine is made, and devices that turn out to be of another kind. Rails of a place are chosen
// once, so both change what was chosen.

import (
	"slices"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// inOrder puts devices into the order of Choose: so a device has the same number whether it is up or down.
func (s *Set) inOrder(devices []provider.Device, m *topo.Machine) (out []provider.Device) {
	c := chooser{opt: ChooseOptions{Fabrics: s.opt.Provider}}
	c.sort(devices, FactsOf(m))
	for _, d := range c.in {
		out = append(out, d.Device)
	}
	return out
}

// fastest is the highest known speed of the devices that leave the host and are not down.
func (s *Set) fastest() (mbps uint64) {
	for _, r := range s.List {
		if !local(r.Device()) && !r.Waits() {
			mbps = max(mbps, r.Device().Mbps)
		}
	}
	return mbps
}

// may reports that memory may use the rail: its device has been up, and is not unfit.
func (r *Rail) may() bool { return !r.Waits() && !r.unfit() }

// unfit reports that the rail's device cannot stand beside the others.
func (r *Rail) unfit() bool {
	return r.late != nil && r.late.demand != nil && r.late.demand.unfit.Load()
}

// Unfit are the rails whose devices turned out to be of another kind than the machine's others: a bit mask.
func (s *Set) Unfit() (mask uint64) {
	for i, r := range s.List {
		if r.unfit() {
			mask |= 1 << i
		}
	}
	return mask
}

func doesNotOpen(err error) string { return "does not open: " + err.Error() }

// cannot logs once why a device does not open.
func (s *Set) cannot(r *Rail, err error) {
	if r.First(doesNotOpen(err)) {
		s.notOpened(r.Device(), err)
	}
}

// arrived lets memory use a device that has come up.
func (s *Set) arrived(r *Rail, d provider.Device) {
	r.late.found.Store(&d)
	r.late.up.Store(true)
	s.log.Info("rail joined: its network interface or port came up; memory that is registered from now on may use it", "rail", r.Name(), "addr", d.Addr)
	s.came.Or(1 << r.Index)
	select {
	case s.Wishes <- struct{}{}:
	default:
	}
}

// Came adds devices that have come up to the rails of the places that they are near to, and returns those that host memory gets, open. As Widen.
// A device that does not open is tried again by the next call.
func (s *Set) Came() []*Rail {
	var list []int
	for _, i := range railsIn(s.came.Swap(0)) {
		if s.List[i].late.demand.rests() {
			s.came.Or(1 << i)
			continue
		}
		s.placesTake(i)
		if s.fits(s.seat, i) && !s.taken(i) && s.room() > len(list) {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		return nil
	}
	s.alone(s.Devices(), s.paths, func([]float64) { s.noteHome(list) })
	more := s.open(list)
	for _, i := range list {
		if s.List[i].Idle() && s.List[i].may() {
			s.came.Or(1 << i)
		}
	}
	return more
}

// fits reports that a rail is one of those that memory at a place would get now.
func (s *Set) fits(at Place, rail int) (fits bool) {
	s.alone(s.Devices(), s.paths, func(used []float64) {
		fits = slices.Contains(s.nearest(at, s.Devices(), s.paths, used), rail)
	})
	return fits
}

// placesTake adds a rail to those of the places that it fits.
func (s *Set) placesTake(rail int) {
	s.choosing.Lock()
	defer s.choosing.Unlock()
	for _, at := range s.places {
		mask := s.chosenAt(at)
		if mask&(1<<rail) == 0 && len(s.at(mask)) < 2*s.opt.MaxRails && s.fits(at, rail) {
			s.rechoose(at, mask|1<<rail)
		}
	}
}

// chosenAt are the rails of a place that was chosen for. Under choosing.
func (s *Set) chosenAt(at Place) uint64 {
	mask, _ := s.chosen.Load(at.String())
	return mask.(uint64)
}

// rechoose makes rails those of a place, and shows that. Under choosing.
func (s *Set) rechoose(at Place, mask uint64) {
	s.chosen.Store(at.String(), mask)
	s.alone(s.Devices(), s.paths, func([]float64) { s.note(at, s.Devices(), s.paths, railsIn(mask)) })
}

// replace gives a place other rails for unfit ones.
func (s *Set) replace(at Place) {
	s.choosing.Lock()
	defer s.choosing.Unlock()
	mask := s.chosenAt(at) &^ s.Unfit()
	s.rechoose(at, mask|maskOf(s.replacing(at, mask)))
}

// replacing are rails for memory at a place beside those of a bit mask, up to max_rails.
func (s *Set) replacing(at Place, mask uint64) (list []int) {
	s.alone(s.Devices(), s.paths, func(used []float64) { list = s.nearest(at, s.Devices(), s.paths, used) })
	list = slices.DeleteFunc(list, func(i int) bool { return mask&(1<<i) != 0 || local(s.List[i].Device()) })
	return list[:max(0, min(len(list), s.opt.MaxRails-len(s.at(mask))))]
}

// relieve gives host memory of other places than the process's own rails that work if none of theirs does, and opens them. As Widen. Memory of GPUs goes
// over bounce buffers in host memory.
func (s *Set) relieve() (more []*Rail) {
	for at, list := range s.stranded() {
		opened := uint64(0)
		for _, i := range list { // without a lock: it takes long
			if err := s.List[i].Need(); err != nil {
				s.cannot(s.List[i], err)
			} else if opened |= 1 << i; !slices.Contains(more, s.List[i]) {
				more = append(more, s.List[i])
			}
		}
		s.choosing.Lock()
		s.rechoose(s.places[at], s.chosenAt(s.places[at])|opened)
		s.choosing.Unlock()
	}
	return more
}

// stranded are rails for host memory of places that has none which works, by the number of the place.
func (s *Set) stranded() map[int][]int {
	s.choosing.Lock()
	defer s.choosing.Unlock()
	out := map[int][]int{}
	for n, at := range s.places {
		if mask := s.chosenAt(at); at.GPU == nil && !s.works(mask|s.common) {
			list := slices.DeleteFunc(railsIn(s.home.Load()&^mask), func(i int) bool { return !s.works(1 << i) }) // all host memory may be on them already
			list = append(list, s.anywhere(at)...)
			if list = list[:min(len(list), s.opt.MaxRails)]; len(list) > 0 {
				out[n] = list
			}
		}
	}
	return out
}
