package doctor

import (
	"fmt"
	"strconv"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/topo"
)

// links compares what links negotiated with what they could.
func (s *checker) links() {
	s.speeds()
	for _, r := range s.machine.RDMA {
		s.pciLink(r.Name, "class/"+r.Class+"/"+r.Name+"/device", r.PCI, s.speed(r), true)
	}
	for _, n := range s.machine.Nets() {
		if n.PCI != nil && n.Bus == "pci" && s.machine.RDMAOf(n.Name) == nil {
			s.pciLink(n.Name, "class/net/"+n.Name+"/device", n.PCI, n.Mbps, s.used(n.Name))
		}
	}
}

// speed is a device's speed in megabits per second; -1: unknown.
func (s *checker) speed(r topo.RDMA) int {
	if r.Mbps < 0 && len(r.Nets) > 0 {
		if n := s.machine.Net(r.Nets[0]); n != nil {
			return n.Mbps
		}
	}
	return r.Mbps
}

// used says that a device, or an interface of it, is a rail.
func (s *checker) used(name string) bool {
	for _, list := range [][]provider.Device{s.rails.Now, s.rails.Late} {
		for _, d := range list {
			if d.Name == name || strings.HasPrefix(d.Name, name+"-") || strings.HasPrefix(d.Name, name+":") {
				return true
			}
		}
	}
	return false
}

func speedOf(mbps int) string {
	if mbps <= 0 {
		return "unknown speed"
	}
	return gbps(mbps)
}

// speeds counts the links that run as they should.
func (s *checker) speeds() {
	count := map[string]int{}
	var order []string
	for _, r := range s.machine.RDMA {
		if r.Class != "infiniband" || r.State != "ACTIVE" {
			continue
		}
		if rate := s.lanes(r); rate != "" {
			if count[rate]++; count[rate] == 1 {
				order = append(order, rate)
			}
		}
	}
	for _, n := range s.machine.Nets() {
		s.interfaceSpeed(n)
	}
	for _, rate := range order {
		s.Pass("link-speed", "%d x %s", count[rate], rate)
	}
}

// interfaceSpeed finds rails whose interface is slower than an equal one.
func (s *checker) interfaceSpeed(n topo.Net) {
	if n.PCI == nil || n.Mbps <= 0 || !n.Up() || !s.used(n.Name) {
		return
	}
	model := func(o topo.Net) string { return topo.Word(s.Sys, "class/net/"+o.Name+"/device/device") }
	best := n.Mbps
	for _, o := range s.machine.Nets() {
		if o.PCI != nil && o.Driver == n.Driver && model(o) == model(n) && o.Up() {
			best = max(best, o.Mbps)
		}
	}
	if best > n.Mbps {
		s.Warn("link-speed", fmt.Sprintf("%s runs at %s, and an equal interface at %s", n.Name, gbps(n.Mbps), gbps(best)), "check cable and transceiver; set the speed at the switch port", "ethtool "+n.Name)
	}
}

// lanes finds links that came up with fewer lanes, or slower than their equals: "100 Gb/sec (2X HDR)". It returns the
// rate of others.
func (s *checker) lanes(r topo.RDMA) string {
	rate := topo.Word(s.Sys, "class/infiniband/"+r.Name+"/ports/1/rate")
	_, width, _ := strings.Cut(rate, "(")
	lanes, _, ok := strings.Cut(width, "X")
	n, err := strconv.Atoi(lanes)
	best := r.Mbps
	model := func(o topo.RDMA) string { return topo.Word(s.Sys, "class/infiniband/"+o.Name+"/device/device") }
	for _, o := range s.machine.RDMA {
		if o.Driver == r.Driver && o.Link == r.Link && o.State == "ACTIVE" && model(o) == model(r) {
			best = max(best, o.Mbps)
		}
	}
	const remedy = "seat or change cable and transceiver; set the speed at the switch port"
	switch {
	case ok && err == nil && n < 4 && r.Link == "InfiniBand" && best > r.Mbps:
		s.Fail("link-speed", fmt.Sprintf("%s came up with %d of 4 lanes: %s", r.Name, n, rate), remedy, "mlxlink -d "+r.Name, "ibstat "+r.Name)
	case best > r.Mbps && r.Mbps > 0:
		s.Warn("link-speed", fmt.Sprintf("%s runs at %s, and an equal device at %s", r.Name, gbps(r.Mbps), gbps(best)), remedy, "mlxlink -d "+r.Name)
	default:
		return rate
	}
	return ""
}

// pcie is a PCIe link: lanes, and gigatransfers per second.
type pcie struct {
	width int
	gts   float64
}

// mbps is what a PCIe link carries, after encoding and headers: about 85 % of its raw rate. x16 of generation 5: 430 Gbit/s.
func (p pcie) mbps() int {
	encoded := p.gts * 128 / 130
	if p.gts <= 5 {
		encoded = p.gts * 8 / 10
	}
	return int(float64(p.width) * encoded * 1000 * payload)
}

// payload is the share of a PCIe link that is data, with packets of 256 bytes.
const payload = 0.86

func (p pcie) String() string { return fmt.Sprintf("x%d at %g GT/s", p.width, p.gts) }

func (s *checker) pcieOf(dir, which string) (p pcie, ok bool) {
	p.width, _ = strconv.Atoi(topo.Word(s.Sys, dir+"/"+which+"_link_width"))
	rate, _, _ := strings.Cut(topo.Word(s.Sys, dir+"/"+which+"_link_speed"), " ")
	gts, err := strconv.ParseFloat(rate, 64)
	p.gts = gts
	return p, err == nil && p.width > 0 && p.width <= 64 && gts > 0
}

// pciLink compares the PCIe link with the port. A link that could be faster is a fault of the slot or the seat.
func (s *checker) pciLink(name, dir string, at topo.PCIPath, mbps int, matters bool) {
	now, ok := s.pcieOf(dir, "current")
	if !ok {
		return
	}
	most, known := s.pcieOf(dir, "max")
	text := fmt.Sprintf("%s: PCIe %s carries %s", name, now, gbps(now.mbps()))
	short := mbps > 0 && now.mbps() < mbps*9/10
	switch degraded := known && most.mbps() > now.mbps(); {
	case short && len(s.siblings(name)) > 0:
		s.Warn("pcie", fmt.Sprintf("%s, its port %s; the card has several PCIe links, also that of %s", text, gbps(mbps), strings.Join(s.siblings(name), ", ")), "use all devices of the card as rails: each adds its own PCIe link")
	case short && degraded && matters:
		s.Fail("pcie", fmt.Sprintf("%s, its port %s; the card can do %s", text, gbps(mbps), most), "seat the card, move it to a slot with that many lanes, or raise the slot's generation in the BIOS", "lspci -vv -s "+at.Addr())
	case short:
		s.Warn("pcie", fmt.Sprintf("%s, its port %s", text, gbps(mbps)), "count on the PCIe link's speed: the card can do no more")
	case degraded && mbps <= 0 && matters:
		s.Warn("pcie", fmt.Sprintf("%s; the card can do %s, and the port's speed is unknown", text, most), "seat the card, or move it to another slot")
	default:
		s.Pass("pcie", "%s, its port %s", text, speedOf(mbps))
	}
}

// siblings are active devices of the same card on other PCIe links. They share the GUID of the card.
func (s *checker) siblings(name string) (out []string) {
	own := s.machine.Device(name)
	guid := topo.Word(s.Sys, "class/infiniband/"+name+"/sys_image_guid")
	if own == nil || guid == "" {
		return nil
	}
	for _, r := range s.machine.RDMA {
		if card(r.PCI) != card(own.PCI) && r.State == "ACTIVE" && topo.Word(s.Sys, "class/infiniband/"+r.Name+"/sys_image_guid") == guid {
			out = append(out, r.Name)
		}
	}
	return out
}
