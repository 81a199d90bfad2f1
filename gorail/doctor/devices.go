package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/provider/verbs"
	"gorail/backend/topo"
)

func (s *checker) devices() {
	s.rdmaNodes()
	s.cxiNodes()
	s.gpuNodes()
	s.nvlink()
	for _, r := range s.machine.RDMA {
		s.port(r)
	}
}

// names lists a folder; nil if it is not there.
func names(dir fs.FS, name string) (out []string) {
	list, _ := fs.ReadDir(dir, name)
	for _, e := range list {
		out = append(out, e.Name())
	}
	slices.SortFunc(out, topo.Natural)
	return out
}

// ofClass lists the RDMA devices of a class.
func (s *checker) ofClass(class string) (out []string) {
	for _, r := range s.machine.RDMA {
		if r.Class == class {
			out = append(out, r.Name)
		}
	}
	return out
}

const giveInfiniband = "give the container /dev/infiniband (Kubernetes: an RDMA device plugin); on a host load ib_uverbs"

// rdmaNodes compares the kernel's devices with the files that user space opens.
func (s *checker) rdmaNodes() {
	devices := s.ofClass("infiniband")
	if len(devices) == 0 {
		s.Pass("rdma-nodes", "no InfiniBand, RoCE or EFA device")
		return
	}
	commands := []string{"modprobe ib_uverbs", "docker run --device /dev/infiniband --ulimit memlock=-1 ..."}
	var missing, closed []string
	for _, d := range devices {
		node := s.uverbs(d)
		switch err := s.open(node); {
		case node == "" || errors.Is(err, fs.ErrNotExist):
			missing = append(missing, d)
		case err != nil:
			closed = append(closed, fmt.Sprintf("%s (/dev/%s: %v)", d, node, err))
		}
	}
	switch {
	case len(missing) > 0:
		s.Fail("rdma-nodes", fmt.Sprintf("the kernel has %s, and /dev/infiniband has no file for %s", strings.Join(devices, ", "), strings.Join(missing, ", ")), giveInfiniband, commands...)
	case len(closed) > 0:
		s.Fail("rdma-nodes", "cannot open "+strings.Join(closed, ", "), "give this user access: /dev/infiniband/uverbs* are usually of mode 666, and a cgroup may forbid them", "chmod 666 /dev/infiniband/uverbs*")
	default:
		s.Pass("rdma-nodes", "%s can be opened", strings.Join(devices, ", "))
	}
}

// uverbs finds the file of a device: class/infiniband_verbs/uverbs0/ibdev names it.
func (s *checker) uverbs(device string) string {
	for _, u := range names(s.Sys, "class/infiniband_verbs") {
		if topo.Word(s.Sys, "class/infiniband_verbs/"+u+"/ibdev") == device {
			return "infiniband/" + u
		}
	}
	return ""
}

// open tries to open a file below /dev.
func (s *checker) open(node string) error {
	if _, err := fs.Stat(s.Dev, node); err != nil {
		return err
	}
	if s.Try.Open == nil {
		return nil
	}
	return s.Try.Open(node)
}

func (s *checker) cxiNodes() {
	devices := s.ofClass("cxi")
	if len(devices) == 0 {
		s.Pass("cxi-nodes", "no Slingshot device")
		return
	}
	var bad []string
	for _, d := range devices {
		if err := s.open(d); errors.Is(err, fs.ErrNotExist) {
			bad = append(bad, d+" (no /dev/"+d+")")
		} else if err != nil {
			bad = append(bad, fmt.Sprintf("%s (%v)", d, err))
		}
	}
	if len(bad) > 0 {
		s.Fail("cxi-nodes", "the kernel has devices that cannot be opened: "+strings.Join(bad, ", "), "give the container /dev/cxi*, and libfabric with the cxi provider", "docker run --device /dev/cxi0 ...")
		return
	}
	s.Pass("cxi-nodes", "%s can be opened", strings.Join(devices, ", "))
}

// gpus lists NVIDIA's GPUs on the PCI bus, in the order of their addresses.
func (s *checker) gpus() (out []string) {
	for _, addr := range names(s.Sys, "bus/pci/devices") {
		dir := "bus/pci/devices/" + addr
		if class := topo.Word(s.Sys, dir+"/class"); topo.Word(s.Sys, dir+"/vendor") == "0x10de" && strings.HasPrefix(class, "0x03") {
			out = append(out, addr)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return topo.PCIPath{a}.Compare(topo.PCIPath{b}) })
	return out
}

func (s *checker) gpuNodes() {
	gpus := s.gpus()
	have := 0
	for _, name := range names(s.Dev, ".") {
		if n := strings.TrimPrefix(name, "nvidia"); n != name && n != "" && strings.Trim(n, "0123456789") == "" && s.open(name) == nil {
			have++
		}
	}
	switch {
	case len(gpus) == 0:
		s.Pass("gpu-nodes", "no NVIDIA GPU on the PCI bus")
	case have == 0:
		s.Warn("gpu-nodes", fmt.Sprintf("%d GPUs on the PCI bus, and /dev/nvidia* has none that can be opened", len(gpus)), "give the container its GPUs", "docker run --gpus all ...")
	default:
		s.Pass("gpu-nodes", "%d of %d GPUs can be opened", have, len(gpus))
	}
}

// port describes an RDMA device, and says whether its port should be up.
func (s *checker) port(r topo.RDMA) {
	fabric := s.fabric(r)
	state, facts := r.State, []string{}
	mtu := 0
	if len(r.Nets) > 0 {
		if n := s.machine.Net(r.Nets[0]); n != nil {
			mtu = n.MTU
			if state == "" { // class cxi
				state = map[bool]string{true: "ACTIVE", false: "DOWN"}[n.Up()]
			}
			if r.Mbps < 0 {
				r.Mbps = n.Mbps
			}
		}
	}
	if r.Mbps > 0 {
		facts = append(facts, gbps(r.Mbps))
	}
	if r.Link != "" {
		facts = append(facts, r.Link)
	}
	if mtu > 0 {
		facts = append(facts, fmt.Sprintf("MTU %d (%s)", mtu, r.Nets[0]))
	}
	if fw := topo.Word(s.Sys, "class/"+r.Class+"/"+r.Name+"/fw_ver"); fw != "" {
		facts = append(facts, "firmware "+fw)
	}
	text := strings.Join(append([]string{fabric + "/" + r.Name, orUnknown(state)}, facts...), ", ")
	switch {
	case state == "" || state == "ACTIVE":
		s.Pass("ports", "%s", text)
	case topo.Patterns(s.opt.Devices).Judge(-1, r.Name) == topo.Excluded:
		s.Pass("ports", "%s; excluded by option devices", text)
	case s.shouldBeUp(r):
		s.Fail("ports", text+": the port does not work", portRemedy(state, r.Name), "ibstat "+r.Name, "rdma link")
	default:
		s.Warn("ports", text+": the port is not used", portRemedy(state, r.Name), "rdma link")
	}
	if fabric == provider.Verbs && r.Link == "Ethernet" && state == "ACTIVE" {
		s.gid(r)
	}
}

func portRemedy(state, name string) string {
	if state == "INIT" || state == "ARMED" {
		return "start a subnet manager on this InfiniBand network (opensm), or leave the device out: devices=!" + name
	}
	return "check cable, transceiver and switch port, set its interface up, or leave the device out: devices=!" + name
}

// shouldBeUp says that a port that is down is a fault. The second port of a card is often unused.
func (s *checker) shouldBeUp(r topo.RDMA) bool {
	if topo.Patterns(s.opt.Devices).Judge(-1, r.Name) == topo.Named {
		return true
	}
	up, all := 0, 0
	for _, o := range s.machine.RDMA {
		if o.Driver != r.Driver || o.Class != r.Class {
			continue
		}
		all++
		if o.State == "ACTIVE" {
			up++
			if o.Name != r.Name && card(o.PCI) != "" && card(o.PCI) == card(r.PCI) {
				return false
			}
		}
	}
	return up > 0 && 2*up >= all
}

// card is the PCI address without the function.
func card(p topo.PCIPath) string { c, _, _ := strings.Cut(p.Addr(), "."); return c }

func (s *checker) gid(r topo.RDMA) {
	text, err := verbs.GIDOf(s.Sys, r.Name, 1, true, s.opt.IB.GIDIndex)
	if err != nil {
		report := s.Warn // other ports work, and this one may be for something else
		if s.railErr != nil && strings.Contains(s.railErr.Error(), "GID table") || topo.Patterns(s.opt.Devices).Judge(-1, r.Name) == topo.Named {
			report = s.Fail
		}
		report("gid", fmt.Sprintf("%s: %v", r.Name, err), "give the interface an IP address, or set option gid_index", "ip address add ADDRESS/PREFIX dev "+orUnknown(strings.Join(r.Nets, ",")))
		return
	}
	s.Pass("gid", "%s: %s", r.Name, text)
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func gbps(mbps int) string { return fmt.Sprintf("%.4g Gbit/s", float64(mbps)/1000) }
