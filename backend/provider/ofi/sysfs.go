package ofi

import (
	"io/fs"
	"strconv"

	"gorail/backend/topo"
)

// interfaceMbps is 0 where the driver doesn't know (virtual interfaces say -1 or an error).
func interfaceMbps(sys fs.FS, name string) uint64 {
	mbps, err := strconv.ParseInt(topo.Word(sys, "class/net/"+name+"/speed"), 10, 64)
	if err != nil || mbps < 0 {
		return 0
	}
	return uint64(mbps)
}

// readNUMA is -1 where the device has no node.
func readNUMA(sys fs.FS, device string) int {
	node, err := strconv.Atoi(topo.Word(sys, device+"/numa_node"))
	if err != nil {
		return -1
	}
	return node
}
