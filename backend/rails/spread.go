package rails

import (
	"cmp"
	"fmt"
	"slices"
)

// limit keeps as many devices as the limits permit. Loopback and confined devices leave room for at least one other.
func (c *chooser) limit() {
	loops := 0
	for _, d := range c.in {
		if d.Loopback || d.Confined {
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
		if (d.Loopback || d.Confined) && loops > 0 {
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
	fastest := c.fastest(func(candidate) bool { return true })
	fabrics := map[string]int{}
	var rest []candidate
	for _, d := range c.in {
		if d.Loopback || d.Confined {
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
	better := func(a, b candidate) int {
		return cmp.Or(cmp.Compare(fabrics[a.Fabric], fabrics[b.Fabric]), cmp.Compare(b.Device.Mbps, a.Device.Mbps))
	}
	picked := map[int]bool{}
	for _, d := range spreadOver(rest, n, func(d candidate) spot { return spot{d.Fabric, d.Device.NUMA, d.PCI.SwitchOrPort()} }, better, byPlace) {
		picked[d.place] = true
	}
	return picked
}

// spot is where a device is: its fabric, NUMA node and PCI switch.
type spot struct {
	fabric string
	node   int
	port   string // "": unknown
}

// spreadOver picks n of a list: by better, then from the NUMA node and the switch with the fewest picks, then by order.
func spreadOver[T any](list []T, n int, at func(T) spot, better, order func(a, b T) int) (picked []T) {
	rest, taken := slices.Clone(list), map[spot]int{}
	node := func(t T) spot { s := at(t); s.port = ""; return s }
	for range min(n, len(rest)) {
		best := 0
		for i := range rest {
			a, b := rest[i], rest[best]
			if cmp.Or(better(a, b), cmp.Compare(taken[node(a)], taken[node(b)]), cmp.Compare(taken[at(a)], taken[at(b)]), order(a, b)) < 0 {
				best = i
			}
		}
		d := rest[best]
		picked, rest = append(picked, d), slices.Delete(rest, best, best+1)
		taken[node(d)]++
		if at(d) != node(d) {
			taken[at(d)]++
		}
	}
	return picked
}
