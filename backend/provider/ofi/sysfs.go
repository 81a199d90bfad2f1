package ofi

import (
	"io/fs"
	"strconv"
	"strings"
)

// rdmaDevice is RDMA hardware that the kernel knows, and the libfabric provider that drives it.
type rdmaDevice struct{ name, fabric string }

// rdmaDevices reads class/infiniband (EFA and verbs devices) and class/cxi below sys.
func rdmaDevices(sys fs.FS) []rdmaDevice {
	var out []rdmaDevice
	for _, name := range dirNames(sys, "class/cxi") {
		out = append(out, rdmaDevice{name, "cxi"})
	}
	for _, name := range dirNames(sys, "class/infiniband") {
		const amazon = "0x1d0f"
		fabric := "verbs;ofi_rxm"
		if readWord(sys, "class/infiniband/"+name+"/device/vendor") == amazon {
			fabric = "efa"
		}
		out = append(out, rdmaDevice{name, fabric})
	}
	return out
}

// interfaceMbps is 0 where the driver doesn't know (virtual interfaces say -1 or an error).
func interfaceMbps(sys fs.FS, name string) uint64 {
	mbps, err := strconv.ParseInt(readWord(sys, "class/net/"+name+"/speed"), 10, 64)
	if err != nil || mbps < 0 {
		return 0
	}
	return uint64(mbps)
}

// readNUMA is -1 where the device has no node.
func readNUMA(sys fs.FS, device string) int {
	node, err := strconv.Atoi(readWord(sys, device+"/numa_node"))
	if err != nil {
		return -1
	}
	return node
}

func readWord(sys fs.FS, name string) string {
	b, err := fs.ReadFile(sys, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func dirNames(sys fs.FS, dir string) []string {
	list, err := fs.ReadDir(sys, dir)
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(list))
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}
