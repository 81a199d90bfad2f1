package rails

import (
	"gorail/backend/provider"
	"gorail/backend/topo"
)

// Place is a stand-in.
type Place struct {
	GPU  topo.PCIPath
	Node int
}

// Nearest is a stand-in.
func Nearest(devices []provider.Device, paths []topo.PCIPath, at Place, most int, used []float64) (out []int) {
	best := topo.UnknownPath
	for i, d := range devices {
		if !d.Loopback && !d.Host {
			best = min(best, topo.Between(paths[i], at.GPU))
		}
	}
	n := 0
	for i, d := range devices {
		if d.Loopback || d.Host || n < most && (at.Node < 0 || d.NUMA == at.Node) && topo.Between(paths[i], at.GPU) == best {
			if !d.Loopback && !d.Host {
				n++
			}
			out = append(out, i)
		}
	}
	return out
}
