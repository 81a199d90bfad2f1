package rails

import (
	"fmt"
	"slices"
	"strings"

	"gorail/backend/topo"
)

// byOption numbers the devices that could be a rail, up or down. So a number means the same device when the link of
// another device is down.
func (c *chooser) byOption() {
	number := 0
	for i := range c.in {
		d := &c.in[i]
		own := -1
		if !d.Loopback && !d.Confined && kind(*d) == "" {
			own = number
			number++
		}
		d.verdict = topo.Patterns(c.opt.Devices).Judge(own, names(d.Device)...)
	}
	c.drop(func(d candidate) string {
		if d.verdict == topo.Excluded {
			return "excluded by option devices"
		}
		return ""
	})
}

// byKind leaves out devices that are unfit by their kind. It sets aside bridges with a real port for restoreBridges.
func (c *chooser) byKind() {
	c.drop(func(d candidate) string {
		if d.exempt() || d.Bridge && d.Wired && d.PortOf == "" {
			return ""
		}
		return kind(d)
	})
	var in []candidate
	for _, d := range c.in {
		if !d.exempt() && d.Bridge {
			c.bridges = append(c.bridges, d)
		} else {
			in = append(in, d)
		}
	}
	c.in = in
}

// bySpeed leaves out devices that would slow down the fast ones. A device of unknown speed stays.
func (c *chooser) bySpeed() {
	fastest := c.fastest(func(candidate) bool { return true })
	c.drop(func(d candidate) string {
		mbps, most := d.Device.Mbps, fastest[d.Fabric]
		if d.exempt() || mbps == 0 || 4*mbps >= most {
			return ""
		}
		return speed(mbps) + " beside " + speed(most)
	})
}

// byManagement leaves out management interfaces: those known as such if the fabric has others, and those without RDMA if
// the fabric has faster ones with RDMA.
func (c *chooser) byManagement() {
	const why = "management interface"
	others := map[string]bool{}
	for _, d := range c.in {
		others[d.Fabric] = others[d.Fabric] || !d.Loopback && !d.Management
	}
	c.drop(func(d candidate) string {
		if !d.exempt() && d.Management && others[d.Fabric] {
			return why
		}
		return ""
	})
	rdma := c.fastest(func(d candidate) bool { return d.RDMA })
	c.drop(func(d candidate) string {
		if mbps := d.Device.Mbps; !d.exempt() && !d.RDMA && mbps > 0 && mbps < rdma[d.Fabric] {
			return why
		}
		return ""
	})
}

// restoreBridges brings bridges back if their fabric has no other device that leaves the machine.
func (c *chooser) restoreBridges() {
	real := map[string]bool{}
	for _, d := range c.in {
		real[d.Fabric] = real[d.Fabric] || !d.Loopback
	}
	c.in = append(c.in, c.bridges...)
	slices.SortFunc(c.in, byPlace)
	c.drop(func(d candidate) string {
		if !d.exempt() && d.Bridge && real[d.Fabric] {
			return kind(d)
		}
		return ""
	})
}

// fastest is the highest known speed of the devices that count, in Mb/s by fabric.
func (c *chooser) fastest(counts func(candidate) bool) map[string]uint64 {
	out := map[string]uint64{}
	for _, d := range c.in {
		if !d.Loopback && counts(d) {
			out[d.Fabric] = max(out[d.Fabric], d.Device.Mbps)
		}
	}
	return out
}

// kind returns why a device is unfit by its kind; "": it is fit.
func kind(d candidate) string {
	switch {
	case d.PortOf != "":
		return "port of " + d.PortOf
	case d.Bridge && strings.HasPrefix(d.Name, "virbr"):
		return "bridge of virtual machines"
	case d.Bridge && !d.Wired:
		return "container bridge"
	case d.Bridge:
		return "bridge"
	case d.Tunnel:
		return "tunnel"
	case d.Wireless:
		return "wireless"
	}
	return ""
}

// speed formats a speed in Mb/s or Gb/s.
func speed(mbps uint64) string {
	if mbps < 1000 {
		return fmt.Sprintf("%d Mb/s", mbps)
	}
	return fmt.Sprintf("%g Gb/s", float64(mbps)/1000)
}
