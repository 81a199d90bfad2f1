package rails

import (
	"cmp"
	"fmt"
	"slices"
)

// limit keeps as many devices as the limits permit. Loopback devices leave room for at least one other.
func (c *chooser) limit() {
	loops := 0
	for _, d := range c.in {
		if d.Loopback {
			loops++
		}
	}
	rails, room := len(c.in)-loops, c.opt.Slots
	if room == 0 {
		room = len(c.in)
	}
	loops = min(loops, room-min(1, rails))
	rails = min(rails, room-loops)
	if c.opt.MaxRails > 0 {
		rails = min(rails, c.opt.MaxRails)
	}
	keep := c.spread(rails)
	for _, d := range c.in {
		if d.Loopback && loops > 0 {
			keep[d.place] = true
			loops--
		}
	}
	most := c.opt.MaxRails
	if most == 0 {
		most = c.opt.Slots
	}
	c.drop(func(d candidate) string {
		if keep[d.place] {
			return ""
		}
		return fmt.Sprint(overLimit, most)
	})
}

// spread picks n rails, as a set of places: rails of the first fabric first, then the faster, then from the NUMA node
// and the switch with the fewest picks.
func (c *chooser) spread(n int) map[int]bool {
	type key struct {
		fabric, at string
		node       int
	}
	fastest := c.fastest(func(candidate) bool { return true })
	fabrics := map[string]int{}
	var rest []candidate
	for _, d := range c.in {
		if d.Loopback {
			continue
		}
		if _, ok := fabrics[d.Fabric]; !ok {
			fabrics[d.Fabric] = len(fabrics)
		}
		if d.Device.Mbps == 0 {
			d.Device.Mbps = fastest[d.Fabric]
		}
		rest = append(rest, d)
	}
	picked, taken := map[int]bool{}, map[key]int{}
	node := func(d candidate) key { return key{d.Fabric, "", d.Device.NUMA} }
	port := func(d candidate) key { return key{d.Fabric, d.PCI.SwitchOrPort(), d.Device.NUMA} }
	for range min(n, len(rest)) {
		best := slices.MinFunc(rest, func(a, b candidate) int {
			return cmp.Or(cmp.Compare(fabrics[a.Fabric], fabrics[b.Fabric]), cmp.Compare(b.Device.Mbps, a.Device.Mbps),
				cmp.Compare(taken[node(a)], taken[node(b)]), cmp.Compare(taken[port(a)], taken[port(b)]), byPlace(a, b))
		})
		picked[best.place] = true
		taken[node(best)]++
		if best.PCI.SwitchOrPort() != "" {
			taken[port(best)]++
		}
		rest = slices.DeleteFunc(rest, func(d candidate) bool { return d.place == best.place })
	}
	return picked
}
