package rail

import (
	"slices"

	"gorail/backend/provider"
)

// Choose takes the devices to open, at most limit. Of sockets, the loopback device always comes along (it serves peers
// in the same network namespace), then the others as discovered, best first.
func Choose(found []provider.Device, limit int) (chosen, left []provider.Device) {
	list := slices.Clone(found)
	slices.SortStableFunc(list, func(a, b provider.Device) int {
		switch {
		case a.Loopback == b.Loopback:
			return 0
		case a.Loopback:
			return -1
		}
		return 1
	})
	seen := map[string]bool{}
	for _, d := range list {
		key := d.Fabric + "\x00" + d.Name
		if seen[key] || len(chosen) == limit {
			left = append(left, d) // a second address of a device adds nothing
			continue
		}
		seen[key] = true
		chosen = append(chosen, d)
	}
	return chosen, left
}
