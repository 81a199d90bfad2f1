package rails

// Starts of the ranks of a host that is wide, by the code that their engines run: each chooses beside those before it.

import (
	"slices"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/topo"
)

// Rank is a process of a host, and where it registers memory.
type Rank struct {
	Seat   Place   // that of its processors
	Memory []Place // in the order of registration
}

// Simulated are ranks that have started, and registered memory.
type Simulated struct {
	devices []provider.Device
	paths   []topo.PCIPath
	engines []*Set
	homes   [][]int
	chosen  []map[string]taken
	total   map[string]float64 // what all use, by Key
}

// taken are the devices for memory at a place.
type taken struct {
	at   Place
	list []int
}

// Simulate starts engines that see each other, one after the other: each has its number among them from its launcher. When all have started each
// registers its memory. devices are those that are up, as Choose orders them.
func Simulate(o option.Options, devices []provider.Device, paths []topo.PCIPath, ranks []Rank) *Simulated {
	m := &Simulated{devices: devices, paths: paths, total: map[string]float64{}}
	for n, r := range ranks {
		s := &Set{opt: o}
		s.Turn, s.Alone = n, func(choose func(map[string]float64)) { m.alone(s, choose) }
		m.engines, m.chosen = append(m.engines, s), append(m.chosen, map[string]taken{})
		m.homes = append(m.homes, m.take(n, r.Seat))
	}
	for n, r := range ranks {
		for _, at := range r.Memory {
			m.take(n, at)
		}
	}
	return m
}

// alone is Shares.Alone.
func (m *Simulated) alone(s *Set, choose func(used map[string]float64)) {
	for key, w := range s.Weights() {
		m.total[key] -= w
	}
	choose(m.total)
	for key, w := range s.Weights() {
		m.total[key] += w
	}
}

// take chooses for memory at a place, once.
func (m *Simulated) take(rank int, at Place) []int {
	if had, known := m.chosen[rank][at.String()]; known {
		return had.list
	}
	list := m.engines[rank].choose(at, m.devices, m.paths)
	m.chosen[rank][at.String()] = taken{at, list}
	return list
}

// would is take for memory that the rank may register, too: nothing of it is left.
func (m *Simulated) would(rank int, at Place) []int {
	_, known := m.chosen[rank][at.String()]
	list, s := m.take(rank, at), m.engines[rank]
	if !known {
		s.Alone(func(map[string]float64) { delete(s.weights, at.String()) })
		delete(m.chosen[rank], at.String())
	}
	return list
}

// Rails are the devices that a rank's memory at a place is registered on, as For says.
func (m *Simulated) Rails(rank int, at Place) []int {
	mask, home := uint64(0), m.homes[rank]
	if at.GPU == nil && at.Node < 0 {
		mask = maskOf(home)
	} else {
		mask = maskOf(m.would(rank, at))
	}
	common := 0
	for _, i := range home {
		if at.GPU == nil && (local(m.devices[i]) || common < mostCommon) {
			mask |= 1 << i
		}
		if !local(m.devices[i]) {
			common++
		}
	}
	return railsIn(mask)
}

// Shares are the parts of the devices that a rank should use for memory at a place, if all ranks use theirs for memory of such a kind alike: by the
// numbers of the devices. A device that is not near replaces one that has failed, and has no part.
func (m *Simulated) Shares(rank int, at Place) map[int]float64 {
	all, own := make([]float64, len(m.devices)), map[int]float64{}
	for n := range m.engines {
		for name, t := range m.chosen[n] {
			if (t.at.GPU != nil) != (at.GPU != nil) {
				continue
			}
			list := m.near(t)
			for _, i := range list {
				all[i] += 1 / float64(len(list))
				if n == rank && name == at.String() {
					own[i] = 1 / float64(len(list))
				}
			}
		}
	}
	for i := range own {
		own[i] /= all[i]
	}
	return own
}

// near are the devices of a choice that are nearest to the place.
func (m *Simulated) near(t taken) []int {
	nearest := Explain(m.devices, m.paths, t.at, len(m.devices), nil).Near
	return slices.DeleteFunc(slices.Clone(t.list), func(i int) bool { return !slices.Contains(nearest, i) })
}
