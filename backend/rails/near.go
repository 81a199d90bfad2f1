package rails

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// MostDevices is how many devices an engine knows, besides the loopback device and shared memory: the core has 64 rails.
const MostDevices = 62

// Place is where memory lies.
type Place struct {
	GPU  topo.PCIPath // of GPU memory; nil: host memory, or the GPU's path is unknown
	Node int          // NUMA node of host memory, or of the GPU; -1: unknown
}

// Choice is the rails of memory, and why they were chosen.
type Choice struct {
	Rails []int  // indexes in the list of devices, ascending
	Near  []int  // the nearest devices, which the ranks beside them share out: more than in Rails if the limit took some away, fewer if all are few
	Why   string // why Rails, as far as the limit did not decide

	NearWhy string // why Near
}

// Nearest chooses the rails for memory: their indexes in devices, ascending, of at most `most` devices. paths are the devices' PCI paths (see
// Paths; nil: unknown). used is how much of each device other engines of the host use: the sum of their weights (nil: unknown).
//
// Loopback and shared memory are always chosen and do not count. Shards go with their device. If the others are at most `most`, Nearest
// chooses all. Else it looks at the preferred fabric alone, that of the first device: regions on different fabrics have no pair of rails. If that has
// at most `most` devices, Nearest chooses these. Else it chooses the nearest:
//
//   - For GPU memory, the devices that are closest to the GPU on the PCI bus. If no device is closer than the others, those of the GPU's
//     NUMA node.
//   - For host memory, the devices of its NUMA node.
//   - If the node is unknown or has no device, all.
//   - If one alone is near, the next nearest, too: transfers use it little, and it replaces the first.
//
// If more than `most` are near, the least used come first. Among equals Nearest spreads over NUMA nodes and PCI switches, as Choose does, and then takes
// them in order. The result depends on the arguments alone, and has a rail if there is a device.
func Nearest(devices []provider.Device, paths []topo.PCIPath, at Place, most int, used []float64) []int {
	return Explain(devices, paths, at, most, used).Rails
}

// Explain is Nearest, with reasons.
func Explain(devices []provider.Device, paths []topo.PCIPath, at Place, most int, used []float64) Choice {
	always, units := unitsOf(devices, paths, used)
	most = max(1, most)
	all, preferred := units, units
	if len(units) > 0 {
		preferred = slices.DeleteFunc(slices.Clone(units), func(u unit) bool { return u.Fabric != units[0].Fabric })
	}
	nearest, why := near(preferred, at)
	c := Choice{Near: railsOf(nearest), NearWhy: why}
	switch {
	case len(all) <= most:
		c.Rails, c.Why = railsOf(all), "no more devices than max_rails"
	case len(preferred) <= most:
		c.Rails, c.Why = railsOf(preferred), "no more devices of the preferred fabric than max_rails"
	default:
		chosen := leastUsed(nearest, most)
		if c.Why = why; len(chosen) == 1 && most > 1 {
			chosen, c.Why = append(chosen, spare(preferred, chosen[0], at)), why+", and one for its failure"
		}
		c.Rails = railsOf(chosen)
	}
	c.Rails = append(c.Rails, always...)
	slices.Sort(c.Rails)
	return c
}

// unit is a device with the rails over it.
type unit struct {
	provider.Device
	rails []int // the first shard's, then those of further shards
	path  topo.PCIPath
	used  float64
}

// unitsOf returns the rails that always serve, and the other devices in order.
func unitsOf(devices []provider.Device, paths []topo.PCIPath, used []float64) (always []int, units []unit) {
	type key struct{ provider, fabric, name string }
	at := map[key]int{}
	for i, d := range devices {
		if local(d) {
			always = append(always, i)
			continue
		}
		k := key{d.Provider, d.Fabric, d.Name}
		n, known := at[k]
		if !known {
			n = len(units)
			at[k] = n
			units = append(units, unit{Device: d})
		}
		u := &units[n]
		u.rails = append(u.rails, i)
		if i < len(paths) && len(u.path) == 0 {
			u.path = paths[i]
		}
		if i < len(used) {
			u.used = max(u.used, math.Round(used[i]*1e6)/1e6) // sums of the same weights in another order differ in the last bits
		}
	}
	return always, units
}

func railsOf(units []unit) (rails []int) {
	for _, u := range units {
		rails = append(rails, u.rails...)
	}
	slices.Sort(rails)
	return rails
}

// near returns the devices near to memory, all of them if none is nearer than others.
func near(units []unit, at Place) ([]unit, string) {
	pick := func(fits func(unit) bool) []unit {
		return slices.DeleteFunc(slices.Clone(units), func(u unit) bool { return !fits(u) })
	}
	best := topo.UnknownPath
	for _, u := range units {
		best = min(best, topo.Between(at.GPU, u.path))
	}
	if best < topo.OtherRoot {
		if closest := pick(func(u unit) bool { return topo.Between(at.GPU, u.path) == best }); len(closest) < len(units) {
			return closest, best.String() + " as the GPU"
		}
	}
	if same := pick(func(u unit) bool { return Near(u.Device, at.Node) }); len(same) > 0 {
		return same, fmt.Sprintf("NUMA node %d", at.Node)
	}
	if at.Node < 0 {
		return units, "all: the memory's place is unknown"
	}
	return units, fmt.Sprintf("all: no device is known to be on NUMA node %d", at.Node)
}

// spare is the device that replaces the only near one: the next nearest.
func spare(units []unit, lost unit, at Place) unit {
	rest := slices.DeleteFunc(slices.Clone(units), func(u unit) bool { return u.rails[0] == lost.rails[0] })
	nearest, _ := near(rest, at)
	return leastUsed(nearest, 1)[0]
}

// leastUsed takes at most `most` of the devices.
func leastUsed(units []unit, most int) []unit {
	if len(units) <= most {
		return units
	}
	return spreadOver(units, most, func(u unit) spot { return spot{u.Fabric, u.NUMA, u.path.SwitchOrPort()} },
		func(a, b unit) int { return cmp.Compare(a.used, b.used) }, func(a, b unit) int { return cmp.Compare(a.rails[0], b.rails[0]) })
}

// Paths are the PCI paths of devices for Nearest. A device that reaches memory of GPUs by another function of its card has that function's path.
func Paths(devices []provider.Device, m *topo.Machine) []topo.PCIPath {
	facts := FactsOf(m)
	paths := make([]topo.PCIPath, len(devices))
	for i, d := range devices {
		paths[i] = facts(d).PCI
		for _, name := range names(d) {
			if direct := m.Direct(name); direct != nil {
				paths[i] = direct
			}
		}
	}
	return paths
}

// Share is the part of each of equal devices that one of the ranks of a host gets. The devices lie side by side on a line, and each rank has an
// equal interval of it. So each rank gets the same sum, each device is given away once, and a rank has few devices. A rank that is not one of
// 0..ranks-1 gets everything, as if it were alone.
func Share(devices, ranks, rank int) []float64 {
	if ranks < 1 || rank < 0 || rank >= ranks {
		ranks, rank = 1, 0
	}
	part := make([]float64, max(0, devices))
	for i := range part { // the line in units of 1/ranks: exact
		from, to := max(i*ranks, rank*devices), min((i+1)*ranks, (rank+1)*devices)
		part[i] = float64(max(0, to-from)) / float64(ranks)
	}
	return part
}
