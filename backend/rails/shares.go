package rails

// The engines of a host share the devices of a wide machine: each takes those that others use least. Rails for memory of one place are chosen
// once, because a transfer needs rails that have all of its memory.

import (
	"fmt"
	"sync"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// Shares is how an engine of a wide machine shares devices with the other engines of its host.
type Shares struct {
	// Alone runs choose while no other engine of this host chooses, and then shows Weights to them. used is how much of each device the others use,
	// by Key; nil: unknown. A nil Alone runs choose at once.
	Alone func(choose func(used map[string]float64))

	// Turn has an engine choose among equals as if that many had chosen before it: so engines that do not see each other differ.
	Turn int

	chosen   sync.Map // bit masks of rails, by Place.String
	choosing sync.Mutex
	places   []Place // of chosen, but for the process's own; under choosing
	mu       sync.Mutex
	weights  map[string]map[string]float64 // by Place.String and Key
}

// turnWeight is less than any difference between uses that counts.
const turnWeight = 1e-5

// Weights is how much this engine uses each device, by Key: those of the process's own place, and of each place where memory was registered, have
// equal weights that sum to 1.
func (s *Shares) Weights() map[string]float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]float64{}
	for _, of := range s.weights {
		for key, w := range of {
			all[key] += w
		}
	}
	return all
}

// ByDevice returns how much is used of each rail, by the order of List.
func (s *Set) ByDevice(used map[string]float64) []float64 { return ordered(s.Devices(), s.paths, used) }

func ordered(devices []provider.Device, paths []topo.PCIPath, used map[string]float64) []float64 {
	if used == nil {
		return nil
	}
	out := make([]float64, len(devices))
	for i, k := range keys(devices, paths) {
		if k != "" {
			out[i] = used[k]
		}
	}
	return out
}

// keys are names of devices that all engines of the host know: the PCI address, since an interface's name may differ between containers, or the name
// if a device has no address of its own. "": it is local.
func keys(devices []provider.Device, paths []topo.PCIPath) []string {
	function := func(i int) string { return devices[i].Fabric + "/" + paths[i].Addr() }
	ports := map[string]int{} // of a function
	for i := range devices {
		ports[function(i)]++
	}
	here, out := fmt.Sprint("@", topo.NetNS()), make([]string, len(devices)) // of a pod, say: other pods have an interface of that name
	for i, d := range devices {
		switch {
		case local(d):
		case paths[i].Addr() != "" && ports[function(i)] == 1:
			out[i] = function(i)
		case d.Hardware:
			out[i] = Name(d)
		default:
			out[i] = Name(d) + here
		}
	}
	return out
}

// String names a place.
func (p Place) String() string {
	if p.GPU != nil {
		return "GPU " + p.GPU.Addr()
	}
	return fmt.Sprint("node ", p.Node)
}

// near returns the rails for memory at a place as a bit mask.
func (s *Set) near(at Place) uint64 {
	if mask, known := s.chosen.Load(at.String()); known {
		return mask.(uint64)
	}
	s.choosing.Lock()
	defer s.choosing.Unlock()
	if mask, known := s.chosen.Load(at.String()); known {
		return mask.(uint64)
	}
	mask := maskOf(s.choose(at, s.Devices(), s.paths))
	s.chosen.Store(at.String(), mask)
	s.places = append(s.places, at)
	return mask
}

// choose chooses devices for memory at a place, beside those of the other engines, and shows them its choice.
func (s *Set) choose(at Place, devices []provider.Device, paths []topo.PCIPath) (rails []int) {
	s.alone(devices, paths, func(used []float64) {
		rails = s.nearest(at, devices, paths, used)
		s.note(at, devices, paths, rails)
	})
	return rails
}

// alone runs choose as Shares.Alone does. used is by the order of devices; nil: unknown.
func (s *Set) alone(devices []provider.Device, paths []topo.PCIPath, choose func(used []float64)) {
	switch {
	case s.Alone != nil:
		s.Alone(func(used map[string]float64) { choose(ordered(devices, paths, used)) })
	case len(s.List) == len(devices):
		choose(s.used())
	default:
		choose(nil)
	}
}

// note notes what memory at a place uses.
func (s *Set) note(at Place, devices []provider.Device, paths []topo.PCIPath, rails []int) {
	of, names := map[string]float64{}, keys(devices, paths)
	for _, i := range rails {
		if names[i] != "" {
			of[names[i]] = 0
		}
	}
	for k := range of {
		of[k] = 1 / float64(len(of))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.weights == nil {
		s.weights = map[string]map[string]float64{}
	}
	s.weights[at.String()] = of
}

// nearest is Nearest when it is this engine's turn.
func (s *Set) nearest(at Place, devices []provider.Device, paths []topo.PCIPath, used []float64) []int {
	list := s.chosenFrom(len(devices))
	if len(list) < len(devices) {
		devices, paths, used = pick(devices, list), pick(paths, list), pick(used, list)
	}
	if used == nil && s.Turn > 0 {
		used = make([]float64, len(devices))
	}
	for range s.Turn % max(1, len(nonLocal(devices))) { // then all are used alike again
		for _, i := range Nearest(devices, paths, at, s.opt.MaxRails, used) {
			used[i] += turnWeight
		}
	}
	return pick(list, Nearest(devices, paths, at, s.opt.MaxRails, used))
}

// chosenFrom are the numbers of the devices that may be chosen, of n.
func (s *Set) chosenFrom(n int) (list []int) {
	for i := range n {
		if s.out == nil || !s.out(i) {
			list = append(list, i)
		}
	}
	return list
}

// pick are the elements of a list at some places; nil: the list is.
func pick[T any](all []T, at []int) (out []T) {
	if all == nil {
		return nil
	}
	for _, i := range at {
		out = append(out, all[i])
	}
	return out
}

func maskOf(rails []int) (mask uint64) {
	for _, i := range rails {
		mask |= 1 << i
	}
	return mask
}
