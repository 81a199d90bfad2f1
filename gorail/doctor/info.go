package doctor

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/rails"
	"gorail/backend/topo"
)

// Info is what an agent of this machine would use. It judges nothing.
type Info struct {
	Version int      `json:"version"` // of this object: SchemaVersion
	Tool    string   `json:"tool"`
	Plugin  string   `json:"plugin"`            // path
	NIXL    string   `json:"nixl,omitempty"`    // package and folder; "": none was found
	Places  string   `json:"places,omitempty"`  // what became of NCCL's topology file
	Options []string `json:"options,omitempty"` // NAME=VALUE that differ from the default
	Rails   []Rail   `json:"rails"`
	Unused  []Unused `json:"unused,omitempty"`
	GPUs    []GPU    `json:"gpus,omitempty"`
	Ways    []Way    `json:"ways"`
}

// Rail is a device that an agent opens, or that joins later.
type Rail struct {
	Name    string `json:"name"`
	Mbps    uint64 `json:"mbps,omitempty"` // 0: unknown
	Address string `json:"address,omitempty"`
	NUMA    int    `json:"numa"` // -1: unknown
	Reaches string `json:"reaches"`
	Waits   string `json:"waits,omitempty"` // what keeps it from being opened now
}

// Unused is a device that no agent opens here.
type Unused struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

// GPU is one on the PCI bus. CUDA may number them differently.
type GPU struct {
	PCI  string   `json:"pci"`
	NUMA int      `json:"numa"`           // -1: unknown
	Near []string `json:"near,omitempty"` // rails that leave this host, of a region in its memory
	How  string   `json:"how,omitempty"`  // why these
}

// Way is how memory of one kind moves to one kind of peer.
type Way struct {
	Memory string `json:"memory"`
	Peer   string `json:"peer"`
	By     string `json:"by"`
}

// The kinds of peers.
const (
	besideUs     = "a process beside this one"
	otherPod     = "another container of this host"
	otherHost    = "another host"
	theNetwork   = "as another host"
	noSM         = theNetwork + ": provider has no sm"
	copiedByRing = "sm/memory, ring: two copies"
)

// What a rail reaches.
const (
	onOtherHosts    = "other hosts"
	onThisHost      = "this host"
	inThisNamespace = "this network namespace"
)

// Look says what an agent would use. An error is one of the options.
func Look(h *Host) (*Info, error) {
	s := &checker{Report: &Report{Version: SchemaVersion}, Host: h, machine: topo.Read(h.Sys)}
	if !s.options() {
		return nil, errors.New(s.Checks[0].Text)
	}
	w := h.Software
	i := &Info{Version: SchemaVersion, Tool: w.Tool, Plugin: w.Plugin.Path, Options: s.set()}
	if w.Plugin.Err != "" {
		i.Plugin += ": " + w.Plugin.Err
	}
	if w.Wheels.Takes != "" {
		i.NIXL = "nixl-" + w.Wheels.Takes + " in " + w.Wheels.Where
	}
	i.Places = s.nest()
	s.know()
	s.listRails(i)
	s.listGPUs(i)
	if s.railErr != nil {
		i.Ways = []Way{{"any", "any", "none: " + s.railErr.Error()}}
		return i, nil
	}
	s.waysOfHost(i)
	s.waysOfGPUs(i)
	return i, nil
}

// set lists the options that are set to another value than the default.
func (s *checker) set() (list []string) {
	for _, o := range option.Defaults() {
		value := s.Params[o.Name]
		if value == "" {
			value = s.env("GORAIL_" + strings.ToUpper(o.Name))
		}
		if value != "" && value != o.Value {
			list = append(list, o.Name+"="+value)
		}
	}
	return list
}

func (s *checker) listRails(i *Info) {
	i.Rails = []Rail{}
	late := map[string]bool{}
	for n, list := range [][]provider.Device{s.rails.Now, s.rails.Late} {
		for _, d := range list {
			if late[rails.Name(d)] = n > 0; n > 0 && d.Waits == "" {
				d.Waits = "the link is down" // an interface
			}
			r := Rail{Name: rails.Name(d), Mbps: d.Mbps, Address: d.Addr, NUMA: d.NUMA, Waits: d.Waits, Reaches: onOtherHosts}
			switch {
			case d.Host:
				r.Reaches, r.Address = onThisHost, ""
			case d.Loopback:
				r.Reaches = inThisNamespace
			}
			if d.Encrypts {
				r.Reaches += ", encrypted"
			}
			i.Rails = append(i.Rails, r)
		}
	}
	for _, l := range s.rails.Left {
		if !late[rails.Name(l.Device)] {
			i.Unused = append(i.Unused, Unused{rails.Name(l.Device), l.Reason})
		}
	}
}

// remote are the rails that leave this host, now.
func (s *checker) remote() []provider.Device {
	return slices.DeleteFunc(slices.Clone(s.rails.Now), func(d provider.Device) bool { return d.Loopback || d.Host || d.Confined })
}

func (s *checker) listGPUs(i *Info) {
	for _, address := range s.gpus() {
		at := s.place(address)
		g := GPU{PCI: address, NUMA: at.Node}
		c := s.nearest(at, nil)
		if g.Near = s.named(s.leaving(c.Rails)); g.Near != nil {
			g.How = c.Why
		}
		if first := s.leaving(c.Near); len(first) > 0 && len(first) < len(g.Near) && len(g.Near) == len(s.remote()) {
			g.Near, g.How = s.named(first), c.NearWhy+"; large transfers over all"
		}
		i.GPUs = append(i.GPUs, g)
	}
}

// sharesMemory: a rail of shared memory is among those that an agent opens.
func (s *checker) sharesMemory() bool {
	return slices.ContainsFunc(s.rails.Now, func(d provider.Device) bool { return d.Host })
}

// waysOfHost says how host memory moves.
func (s *checker) waysOfHost(i *Info) {
	add := func(memory, peer, by string) { i.Ways = append(i.Ways, Way{memory, peer, by}) }
	near, far := noSM, noSM
	if s.sharesMemory() && s.Try.Reach != nil {
		way, err := s.Try.Reach(s.opt)
		switch {
		case err != nil:
			near = theNetwork + ": " + err.Error()
		case way != "":
			near = copiedByRing + " (" + way + ")"
		default:
			near = "sm/memory, direct: one copy"
		}
		path, err := s.Try.LocalDir(s.opt)
		switch {
		case path == "":
			far = theNetwork + ": local_dir=off"
		case err != nil:
			far = fmt.Sprintf("%s: no folder %s (%v)", theNetwork, path, err)
		default:
			far = copiedByRing + "; they meet in " + path
		}
	}
	add("host", besideUs, near)
	add("host", otherPod, far)
	remote := s.remote()
	if len(remote) == 0 {
		add("host", otherHost, "none: no rail leaves this host")
		return
	}
	byNode := map[int][]string{}
	for _, d := range remote {
		byNode[d.NUMA] = append(byNode[d.NUMA], rails.Name(d))
	}
	if len(byNode) < 2 {
		add("host", otherHost, rails.Names(remote))
		return
	}
	for _, n := range slices.Sorted(maps.Keys(byNode)) {
		if n < 0 {
			continue
		}
		by := "first " + strings.Join(byNode[n], ", ") + "; large transfers over all"
		if chosen := s.leaving(s.nearest(rails.Place{Node: n}, nil).Rails); len(chosen) < len(remote) {
			by = strings.Join(s.named(chosen), ", ")
		}
		add(fmt.Sprintf("host, NUMA node %d", n), otherHost, by)
	}
}

// waysOfGPUs says how memory of GPUs moves.
func (s *checker) waysOfGPUs(i *Info) {
	if len(i.GPUs) == 0 {
		return
	}
	if s.Try.CUDA != nil {
		if err := s.Try.CUDA(s.opt.CUDAPath); err != nil {
			i.Ways = append(i.Ways, Way{"GPU", "any", "none: " + err.Error()})
			return
		}
	}
	sm := noSM
	if s.sharesMemory() {
		sm = "sm/memory: mapped, the GPU copies; of a GPU that the peer does not see: as host memory, staged"
	}
	i.Ways = append(i.Ways, Way{"GPU", "this host", sm}, Way{"GPU", otherHost, s.gpuWay(s.remote())})
	for _, d := range s.rails.Now {
		if d.Fabric == provider.NVLink {
			i.Ways = append(i.Ways, Way{"GPU", "hosts of the rack", d.Label() + ": mapped, the GPU copies; cluster and clique " + d.Subnet})
		}
	}
}

// gpuWay is how memory of GPUs leaves this host.
func (s *checker) gpuWay(remote []provider.Device) string {
	var ways []string
	dmabuf, peermem := s.gpuModules()
	if dmabuf {
		ways = append(ways, "dmabuf")
	}
	if peermem {
		ways = append(ways, "nvidia_peermem")
	}
	hardware := slices.ContainsFunc(remote, func(d provider.Device) bool { return d.Hardware })
	switch {
	case len(remote) == 0:
		return "none: no rail leaves this host"
	case hardware && len(ways) > 0:
		return "direct (" + strings.Join(ways, ", ") + "), the nearest rails first"
	case hardware:
		return "staged through bounce buffers: neither dmabuf (open kernel modules) nor nvidia_peermem"
	}
	return "over tcp, through the rail's own bounce buffers"
}
