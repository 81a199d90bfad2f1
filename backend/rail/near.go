package rail

import "gorail/backend/provider"

// Near returns true if a device is on the NUMA node of some memory; false if one of the two nodes is unknown (-1). Links
// over near devices come first. Links over other devices count as half as fast until their speed is measured.
func Near(d provider.Device, node int) bool { return node >= 0 && d.NUMA == node }

// SeveralNodes returns true if the devices are on more than one NUMA node, so that the place of memory matters.
func SeveralNodes(devices []provider.Device) bool {
	first := -1
	for _, d := range devices {
		switch {
		case d.NUMA < 0:
		case first < 0:
			first = d.NUMA
		case d.NUMA != first:
			return true
		}
	}
	return false
}
