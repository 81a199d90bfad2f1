package topo

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// Node returns the NUMA node of a network or RDMA device; -1: unknown. A bond or VLAN has the node of the interfaces
// below it, if these share one node.
func (m *Machine) Node(dev string) int { return m.node(dev, 4) }

func (m *Machine) node(dev string, depth int) int {
	if r := m.Device(dev); r != nil {
		return r.NUMA
	}
	n := m.Net(dev)
	if n == nil {
		return -1
	}
	if n.NUMA >= 0 || n.Bridge || len(n.Over) == 0 || depth == 0 {
		return n.NUMA
	}
	node := m.node(n.Over[0], depth-1)
	for _, below := range n.Over[1:] {
		if m.node(below, depth-1) != node {
			return -1
		}
	}
	return node
}

// PCIPath is the path to a PCI function from the root: "pci0000:5d", the addresses of the bridges, the function's
// address.
type PCIPath []string

// parsePCIPath extracts the PCI path from a device's path below /sys. It returns nil for a device that is not on PCI.
func parsePCIPath(device string) PCIPath {
	var p PCIPath
	for part := range strings.SplitSeq(device, "/") {
		_, err := parseAddress(part)
		switch {
		case len(p) == 0 && strings.HasPrefix(part, "pci") && strings.Contains(part, ":"):
			p = PCIPath{part}
		case len(p) > 0 && err == nil:
			p = append(p, part)
		}
	}
	if len(p) < 2 {
		return nil
	}
	return p
}

// PathOf returns the path of the PCI function with this address, such as a GPU's "0000:5e:00.0". It returns nil if
// sysfs has no such function.
func PathOf(sys fs.FS, address string) PCIPath {
	t := tree{sys}
	device, ok := t.resolve("bus/pci/devices/" + address)
	if !ok {
		return nil
	}
	return t.pci(device)
}

// FunctionNode is the NUMA node of a PCI function; -1: unknown.
func (m *Machine) FunctionNode(address string) int {
	if m.nets == nil || address == "" {
		return -1
	}
	return m.sys.numa("bus/pci/devices/" + address)
}

// RDMAPath returns the path of an RDMA device of class infiniband or cxi. It returns nil if the device is not on PCI.
func RDMAPath(sys fs.FS, class, name string) PCIPath {
	t := tree{sys}
	device, ok := t.resolve("class/" + class + "/" + name + "/device")
	if !ok {
		return nil
	}
	return t.pci(device)
}

// Addr returns the function's address, "0000:5e:00.0"; "" for an empty path.
func (p PCIPath) Addr() string {
	if len(p) == 0 {
		return ""
	}
	return p[len(p)-1]
}

// SwitchOrPort returns the address of the switch above the function; without a switch, that of the root port or root. It returns "" for
// an empty path. Functions of one device have the same switch.
func (p PCIPath) SwitchOrPort() string {
	switch {
	case len(p) == 0:
		return ""
	case len(p) >= aSwitch: // root, root port, the switch's upstream port, its downstream port, function
		return p[len(p)-3]
	}
	return p[max(0, len(p)-2)]
}

// Compare orders paths by the function's address. A nil path comes last.
func (p PCIPath) Compare(q PCIPath) int {
	if len(p) == 0 || len(q) == 0 {
		return cmp.Compare(min(1, len(q)), min(1, len(p)))
	}
	a, errA := parseAddress(p.Addr())
	b, errB := parseAddress(q.Addr())
	if errA != nil || errB != nil {
		return Natural(p.Addr(), q.Addr())
	}
	return slices.Compare(a[:], b[:])
}

// parseAddress parses domain, bus, device and function.
func parseAddress(s string) (a [4]uint32, err error) {
	if len(s) < len("0000:00:00.0") || len(s) > len("00000000:00:00.0") {
		return a, fmt.Errorf("%q is not a PCI address", s)
	}
	_, err = fmt.Sscanf(s, "%x:%x:%x.%x", &a[0], &a[1], &a[2], &a[3])
	return a, err
}

// Closeness is the distance of two PCI functions. A smaller value is closer.
type Closeness int

// Values of Closeness: the lowest element that connects two functions.
const (
	SameSlot    Closeness = iota // functions of one device
	SameSwitch                   // one switch
	SamePort                     // several switches below one root port
	SameRoot                     // the root complex
	OtherRoot                    // the interconnect between processors
	UnknownPath                  // a function has no path
)

func (c Closeness) String() string {
	names := []string{"same slot", "same switch", "same root port", "same root", "other root", "unknown"}
	if c < 0 || int(c) >= len(names) {
		return fmt.Sprintf("Closeness(%d)", int(c))
	}
	return names[c]
}

// Between returns the closeness of two functions, such as a GPU and a NIC. It is symmetric.
func Between(p, q PCIPath) Closeness {
	if len(p) < 2 || len(q) < 2 {
		return UnknownPath
	}
	common := 0
	for common < min(len(p), len(q)) && p[common] == q[common] {
		common++
	}
	deeper := max(len(p), len(q)) - common // ports and functions below the common part, on the longer side
	slot := func(p PCIPath) string { s, _, _ := strings.Cut(p.Addr(), "."); return s }
	switch {
	case len(p) == len(q) && deeper <= 1 && slot(p) == slot(q):
		return SameSlot
	case common == 0:
		return OtherRoot
	case common == 1:
		return SameRoot
	case deeper <= 2:
		return SameSwitch
	}
	return SamePort
}
