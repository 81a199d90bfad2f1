package ofi

import (
	"io/fs"

	"gorail/backend/topo"
)

// interfaceMbps returns 0 if the driver does not know the speed (virtual interfaces report -1 or an error).
func interfaceMbps(sys fs.FS, name string) uint64 {
	return uint64(max(0, topo.Number(sys, "class/net/"+name+"/speed", 0)))
}

// readNUMA returns -1 if the device has no NUMA node.
func readNUMA(sys fs.FS, device string) int { return topo.Number(sys, device+"/numa_node", -1) }
