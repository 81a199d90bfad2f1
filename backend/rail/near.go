package rail

import "gorail/backend/provider"

// Near says whether a device is on the NUMA node of some memory; false when one of the two nodes is unknown (-1). Links over
// near devices come first, those over others count as half as fast until they have shown what they can do.
func Near(d provider.Device, node int) bool { return node >= 0 && d.NUMA == node }

// SeveralNodes says whether it matters where memory is: the devices are on more than one NUMA node.
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
