package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/topo"
	"gorail/backend/topo/sketch"
)

// Question is what a plan is about.
type Question struct {
	Regions     bool // also the rails of regions
	Rank, Ranks int  // one of the processes of the host; Ranks 0: one process alone
	GPU         int  // that of the rank; -1: the GPU of its number, in turn
}

// Devices are those of a machine, and which of them regions of memory get.
type Devices struct {
	Version  int             `json:"version"` // of this object: SchemaVersion
	Machine  string          `json:"machine"`
	Options  []string        `json:"options,omitempty"` // NAME=VALUE that differ from the default
	MaxRails int             `json:"max_rails"`
	Places   string          `json:"places,omitempty"` // what became of NCCL's topology file
	Usable   []PlacedDevice  `json:"usable"`
	Unused   []Unused        `json:"unused,omitempty"`
	Ranks    int             `json:"ranks,omitempty"`
	Rank     int             `json:"rank"`
	Starts   string          `json:"starts,omitempty"` // how ranks start, if their engines share devices out
	Regions  []PlannedRegion `json:"regions,omitempty"`
}

// PlacedDevice is a device that can be a rail, and where it is.
type PlacedDevice struct {
	Rail
	PCI    string `json:"pci,omitempty"`
	Direct string `json:"gpu_pci,omitempty"` // the function by which the card reaches memory of GPUs, if it is another one
}

// PlannedRegion is a kind of memory with its rails.
type PlannedRegion struct {
	Memory string        `json:"memory"`        // "GPU 0", "host"
	PCI    string        `json:"pci,omitempty"` // of the GPU
	NUMA   int           `json:"numa"`          // -1: unknown
	Rails  []PlannedRail `json:"rails"`
	Why    string        `json:"why"`
}

// PlannedRail is a rail of a region. Share is the part of the device that the rank should use: nil without ranks, and for memory of others.
type PlannedRail struct {
	Name  string   `json:"name"`
	Share *float64 `json:"share,omitempty"`
}

// Described is the host of which a file describes the devices, as package sketch reads it. NCCL's topology file is the file of the same name
// with .xml, if it is there.
func Described(file string, env []string, params map[string]string) (*Host, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	sys, err := sketch.Parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	h := &Host{Sys: sys, Env: env, Params: params}
	beside := strings.TrimSuffix(file, filepath.Ext(file)) + ".xml"
	if _, err := os.Stat(beside); err == nil {
		h.NCCL = beside
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	h.Try.Rails = func(o option.Options) (Rails, error) {
		s := &checker{Report: &Report{}, Host: h, machine: topo.Read(sys), opt: o}
		up := func(name string) (string, bool) { n := s.machine.Net(name); return "", n != nil && n.Up() } // addresses are not described
		return s.chosenOf(s.described(o.Provider, up))
	}
	return h, nil
}

// LookAtDevices answers a question. An error is one of the options, of the question, or no device.
func LookAtDevices(machine string, h *Host, q Question) (*Devices, error) {
	s := &checker{Report: &Report{Version: SchemaVersion}, Host: h, machine: topo.Read(h.Sys)}
	if !s.options() {
		return nil, errors.New(s.Checks[0].Text)
	}
	d := &Devices{Version: SchemaVersion, Machine: machine, Options: s.set(), MaxRails: s.opt.MaxRails, Places: s.nest(), Usable: []PlacedDevice{}, Ranks: q.Ranks, Rank: q.Rank}
	if s.know(); s.railErr != nil {
		return nil, s.railErr
	}
	s.listDevices(d)
	if !q.Regions {
		return d, nil
	}
	p := planner{checker: s, q: q, gpus: s.gpus()}
	for _, address := range p.gpus {
		at := s.place(address)
		p.places, p.near = append(p.places, at), append(p.near, p.firstShards(s.nearest(at, nil).Near))
	}
	if q.GPU >= len(p.gpus) {
		return nil, fmt.Errorf("no GPU %d: this machine has %d on its PCI bus", q.GPU, len(p.gpus))
	}
	if p.simulate(); p.sim != nil {
		d.Starts = "ranks start in order, each on the node of its GPU"
	}
	d.Regions = p.regions()
	return d, nil
}

// listDevices fills in devices and their places.
func (s *checker) listDevices(d *Devices) {
	i := &Info{}
	s.listRails(i)
	d.Unused = i.Unused
	facts := rails.FactsOf(s.machine)
	for n, dev := range slices.Concat(s.rails.Now, s.rails.Late) {
		p := PlacedDevice{Rail: i.Rails[n], PCI: facts(dev).PCI.Addr()}
		if at := rails.Paths([]provider.Device{dev}, s.machine)[0].Addr(); at != p.PCI {
			p.Direct = at
		}
		d.Usable = append(d.Usable, p)
	}
}

// planner finds the rails of each kind of memory, for a rank.
type planner struct {
	*checker
	q      Question
	gpus   []string
	places []rails.Place    // of the GPUs
	near   [][]int          // the devices nearest to each GPU
	sim    *rails.Simulated // the ranks, if there are more devices than max_rails; else nil: then all memory is on all devices
}

// simulate starts the ranks, if their engines share devices out.
func (p *planner) simulate() {
	all := make([]int, len(p.rails.Now))
	for i := range all {
		all[i] = i
	}
	if p.q.Ranks == 0 || len(p.firstShards(p.leaving(all))) <= p.opt.MaxRails || !p.opt.RailShare {
		return
	}
	ranks := make([]rails.Rank, p.q.Ranks)
	for n := range ranks {
		ranks[n].Seat = p.seat(n)
		if g := p.gpuOf(n); g >= 0 {
			ranks[n].Memory = append(ranks[n].Memory, p.places[g])
		}
	}
	p.sim = rails.Simulate(p.opt, p.rails.Now, p.paths, ranks)
}

// seat is where a rank's processors are: on the node of its GPU.
func (p *planner) seat(rank int) rails.Place {
	if g := p.gpuOf(rank); g >= 0 {
		return rails.Place{Node: p.places[g].Node}
	}
	if nodes := topo.Nodes(p.Sys); len(nodes) == 1 {
		return rails.Place{Node: nodes[0].ID}
	}
	return rails.Place{Node: -1}
}

// simulated is region after simulate.
func (p *planner) simulated(r PlannedRegion, at rails.Place) PlannedRegion {
	c, own := p.nearest(at, nil), at.GPU == nil && p.seat(p.q.Rank).Node == at.Node
	if g := p.gpuOf(p.q.Rank); g >= 0 && at.GPU != nil {
		own = p.places[g].String() == at.String()
	}
	share := p.sim.Shares(p.q.Rank, at)
	for _, i := range p.firstShards(p.leaving(p.sim.Rails(p.q.Rank, at))) {
		rail := PlannedRail{Name: rails.Name(p.rails.Now[i])}
		if own {
			rail.Share = new(share[i])
		}
		r.Rails = append(r.Rails, rail)
	}
	r.Why = c.Why
	if near := len(p.firstShards(c.Near)); near > p.opt.MaxRails {
		r.Why += fmt.Sprintf("; %d of %d, the least used", p.opt.MaxRails, near)
	}
	if !own {
		r.Why += "; beside other ranks"
		if at.GPU == nil {
			r.Why += ", and those of all its host memory"
		}
	}
	return r
}

func (p *planner) regions() (list []PlannedRegion) {
	for n, address := range p.gpus {
		if p.q.GPU < 0 || p.q.GPU == n {
			at := p.places[n]
			list = append(list, p.region(PlannedRegion{Memory: fmt.Sprintf("GPU %d", n), PCI: address, NUMA: at.Node}, at))
		}
	}
	nodes := topo.Nodes(p.Sys)
	for _, n := range nodes {
		if p.q.GPU < 0 || p.places[p.q.GPU].Node == n.ID {
			list = append(list, p.region(PlannedRegion{Memory: "host", NUMA: n.ID}, rails.Place{Node: n.ID}))
		}
	}
	if len(nodes) == 0 {
		list = append(list, p.region(PlannedRegion{Memory: "host", NUMA: -1}, rails.Place{Node: -1}))
	}
	return list
}

// region chooses the rails of a region. The other ranks that have the same devices use what the rank's share leaves of them.
func (p *planner) region(r PlannedRegion, at rails.Place) PlannedRegion {
	if p.sim != nil {
		return p.simulated(r, at)
	}
	near := p.firstShards(p.nearest(at, nil).Near)
	ranks := p.sharers(at, near)
	mine := slices.Index(ranks, p.q.Rank)
	part := make([]float64, len(near)) // nothing: other ranks use all
	if mine >= 0 {
		part = rails.Share(len(near), len(ranks), mine)
	}
	used, share := make([]float64, len(p.rails.Now)), map[int]float64{}
	for k, i := range near {
		share[i] = part[k]
		if p.q.Ranks > 0 {
			used[i] = 1 - part[k]
		}
	}
	c := p.nearest(at, used)
	chosen := p.firstShards(p.leaving(c.Rails))
	for _, i := range chosen {
		rail := PlannedRail{Name: rails.Name(p.rails.Now[i])}
		if mine >= 0 {
			rail.Share = new(share[i])
		}
		r.Rails = append(r.Rails, rail)
	}
	r.Why = c.Why
	if len(near) > len(chosen) {
		how := "spread over switches"
		if p.q.Ranks > 0 {
			how = "the least used"
		}
		r.Why += fmt.Sprintf("; %d of %d, %s", len(chosen), len(near), how)
	}
	if p.q.Ranks > 0 && mine < 0 {
		r.Why += "; beside other ranks"
	}
	return r
}

// firstShards leaves out further shards: they have the share of their device.
func (p *planner) firstShards(list []int) []int {
	return slices.DeleteFunc(slices.Clone(list), func(i int) bool { return p.rails.Now[i].Shard > 0 })
}

// gpuOf is the GPU of a rank; -1: there is none.
func (p *planner) gpuOf(rank int) int {
	switch {
	case len(p.gpus) == 0:
		return -1
	case rank == p.q.Rank && p.q.GPU >= 0:
		return p.q.GPU
	}
	return rank % len(p.gpus)
}

// sharers are the ranks that share the devices near to a place. For a GPU, those whose own GPU has the same devices. For host memory, those whose GPU is on the
// node, and all if no rank's is.
func (p *planner) sharers(at rails.Place, near []int) (ranks []int) {
	for rank := range p.q.Ranks {
		g := p.gpuOf(rank)
		if g < 0 {
			continue
		}
		same := p.places[g].Node == at.Node
		if len(at.GPU) > 0 {
			same = slices.Equal(p.near[g], near)
		}
		if same {
			ranks = append(ranks, rank)
		}
	}
	if len(ranks) == 0 && len(at.GPU) == 0 {
		for rank := range p.q.Ranks {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}
