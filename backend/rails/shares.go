package rails

// The engines of a host share the devices of a wide machine: each takes those that others use least. Rails for memory of one place are chosen
// once, because a transfer needs rails that have all of its memory.

import (
	"fmt"
	"sync"
	"syscall"

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
	for i := range devices {
		if k := key(devices, paths, i); k != "" {
			out[i] = used[k]
		}
	}
	return out
}

// key is the name of a device that all engines of the host know: its PCI address, since an interface's name may differ between containers, or its name
// if it has no address of its own. "": it is local.
func key(devices []provider.Device, paths []topo.PCIPath, i int) string {
	d, addr := devices[i], paths[i].Addr()
	if d.Loopback || d.Host {
		return ""
	}
	for j := range devices {
		if j != i && addr != "" && paths[j].Addr() == addr && devices[j].Fabric == d.Fabric {
			addr = "" // ports of one function
		}
	}
	switch {
	case addr != "":
		return d.Fabric + "/" + addr
	case d.Hardware:
		return Name(d)
	}
	return fmt.Sprint(Name(d), "@", netNS()) // of a pod, say: other pods have one of that name
}

// netNS is the process's network namespace; 0: unknown.
func netNS() uint64 {
	var st syscall.Stat_t
	if syscall.Stat("/proc/self/ns/net", &st) != nil {
		return 0
	}
	return st.Ino
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
	of := map[string]float64{}
	for _, i := range rails {
		if k := key(devices, paths, i); k != "" {
			of[k] = 0
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
	if used == nil && s.Turn > 0 {
		used = make([]float64, len(devices))
	}
	for range s.Turn % max(1, len(nonLocal(devices))) { // then all are used alike again
		for _, i := range Nearest(devices, paths, at, s.opt.MaxRails, used) {
			used[i] += turnWeight
		}
	}
	return Nearest(devices, paths, at, s.opt.MaxRails, used)
}

func maskOf(rails []int) (mask uint64) {
	for _, i := range rails {
		mask |= 1 << i
	}
	return mask
}
