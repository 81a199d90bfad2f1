// Stand-in for near.go, which has the same names.

package rails

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// Place is where memory lies.
type Place struct {
	GPU  topo.PCIPath // of GPU memory; nil: host memory, or the GPU's path is unknown
	Node int          // NUMA node of host memory, or of the GPU; -1: unknown
}

// Choice is the rails of memory, and why they were chosen.
type Choice struct {
	Rails []int  // indexes in the list of devices, ascending
	Near  []int  // those that the limit left to choose from, without loopback and shared memory: more devices than in Rails, if the limit took some away
	Why   string // what the near devices have in common
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
//
// If more than `most` are near, the least used come first. Among equals Nearest spreads over NUMA nodes and PCI switches, as Choose does, and then takes
// them in order. The result depends on the arguments alone, and has a rail if there is a device.
func Nearest(devices []provider.Device, paths []topo.PCIPath, at Place, most int, used []float64) []int {
	return Explain(devices, paths, at, most, used).Rails
}

// Explain is Nearest, with reasons.
func Explain(devices []provider.Device, paths []topo.PCIPath, at Place, most int, used []float64) Choice {
	local, units := unitsOf(devices, paths, used)
	most = max(1, most)
	why := "no more devices than max_rails"
	if len(units) > most {
		fabric := units[0].Fabric
		units = slices.DeleteFunc(units, func(u unit) bool { return u.Fabric != fabric })
		why = "no more devices of the preferred fabric than max_rails"
	}
	if len(units) > most {
		units, why = near(units, at)
	}
	c := Choice{Near: railsOf(units), Why: why}
	c.Rails = append(local, railsOf(leastUsed(units, most))...)
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
func unitsOf(devices []provider.Device, paths []topo.PCIPath, used []float64) (local []int, units []unit) {
	type key struct{ provider, fabric, name string }
	at := map[key]int{}
	for i, d := range devices {
		if d.Loopback || d.Host {
			local = append(local, i)
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
	return local, units
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

// leastUsed takes at most `most` of the devices.
func leastUsed(units []unit, most int) []unit {
	if len(units) <= most {
		return units
	}
	type spot struct {
		node int
		at   string
	}
	taken := map[spot]int{}
	node := func(u unit) spot { return spot{u.NUMA, ""} }
	port := func(u unit) spot { return spot{u.NUMA, u.path.SwitchOrPort()} }
	rest := slices.Clone(units)
	var picked []unit
	for range most {
		best := slices.MinFunc(rest, func(a, b unit) int {
			return cmp.Or(cmp.Compare(a.used, b.used), cmp.Compare(taken[node(a)], taken[node(b)]), cmp.Compare(taken[port(a)], taken[port(b)]),
				cmp.Compare(a.rails[0], b.rails[0]))
		})
		picked = append(picked, best)
		taken[node(best)]++
		if port(best) != node(best) {
			taken[port(best)]++
		}
		rest = slices.DeleteFunc(rest, func(u unit) bool { return u.rails[0] == best.rails[0] })
	}
	return picked
}
