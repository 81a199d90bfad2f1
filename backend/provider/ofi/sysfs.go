package ofi

import (
	"io/fs"
	"strconv"

	"gorail/backend/topo"
)

// interfaceMbps returns 0 if the driver does not know the speed (virtual interfaces report -1 or an error).
func interfaceMbps(sys fs.FS, name string) uint64 {
	mbps, err := strconv.ParseInt(topo.Word(sys, "class/net/"+name+"/speed"), 10, 64)
	if err != nil || mbps < 0 {
		return 0
	}
	return uint64(mbps)
}

// readNUMA returns -1 if the device has no NUMA node.
func readNUMA(sys fs.FS, device string) int {
	node, err := strconv.Atoi(topo.Word(sys, device+"/numa_node"))
	if err != nil {
		return -1
	}
	return node
}
