// Package topo reads a machine's network and RDMA devices, their places on the buses, and link changes. All reads go
// through an fs.FS that stands for /sys. Apart from Watch and NodeOf the package has no side effects.
package topo

import (
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Machine is the inventory. Each network interface is read when it is first asked for, as a host of containers has a thousand that nobody asks
// for. It stays as it was then: make another Machine after changes. Any number of goroutines may use it.
type Machine struct {
	RDMA []RDMA // RDMA devices (class infiniband, class cxi), in natural order of their names

	sys    tree
	nested Nested // NCCL's topology file; nil: there is none
	mu     sync.Mutex
	nets   map[string]*Net    // those that were read; nil: there is none
	direct map[string]PCIPath // see Direct; nil: not read yet
}

// Net is one network interface.
type Net struct {
	Name      string
	Index     int     // the kernel's index; 0: unknown
	OperState string  // the kernel's state: up, down, unknown, lowerlayerdown, ...; "": unknown
	Carrier   int     // 1, 0, or -1: unknown, as for interfaces that are set down
	Mbps      int     // megabits per second; -1: unknown
	MTU       int     // bytes; 0: unknown
	PCI       PCIPath // nil without a PCI device
	NUMA      int     // node; -1: unknown
	Driver    string  // "mlx5_core"; "": none or unknown
	Bus       string  // bus of the device: "pci", "virtio", "usb"; "" without a device
	Virtual   bool    // has no device: veth, bridge, bond, VLAN, tunnels
	Loopback  bool
	Wireless  bool
	Bridge    bool
	PortOf    string   // the bridge that it is a port of
	Bond      bool     // a bond of other interfaces
	BondOf    string   // the bond that it belongs to
	VLAN      bool     // a VLAN of another interface
	Tunnel    bool     // tun, tap, wireguard, vxlan and the like: no wire of its own
	Over      []string // interfaces below a bond or a VLAN; the ports of a bridge
}

// RDMA is one RDMA device. For a device with several ports, the fields describe an active port if there is one.
type RDMA struct {
	Name   string // "mlx5_0", "rdmap79s0", "cxi0"
	Class  string // "infiniband" or "cxi"
	Nets   []string
	State  string // "ACTIVE", "INIT", "DOWN", ...; "": unknown (class cxi: use its interface)
	Mbps   int    // megabits per second; -1: unknown
	Link   string // link layer: "InfiniBand", "Ethernet", "Unspecified"; "": unknown
	PCI    PCIPath
	NUMA   int // node; -1: unknown
	Driver string
}

// Up reports whether the interface can carry data. The loopback interface and tunnels always have the state "unknown".
func (n *Net) Up() bool {
	switch n.OperState {
	case "down", "lowerlayerdown", "notpresent", "dormant", "testing":
		return false
	}
	return n.Carrier != 0
}

// Read reads the RDMA devices from sysfs: os.DirFS("/sys") or a partial copy. Unreadable values are unknown. Without sysfs the machine has no
// devices.
func Read(sys fs.FS) *Machine {
	t := tree{sys}
	m := &Machine{sys: t, nets: map[string]*Net{}}
	for _, class := range []string{"infiniband", "cxi"} {
		for _, name := range t.names("class/" + class) {
			m.RDMA = append(m.RDMA, t.rdma(name, class))
		}
	}
	return m
}

// Net finds an interface by name. It returns nil if there is none.
func (m *Machine) Net(name string) *Net {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, read := m.nets[name]
	if dir := "class/net/" + name; !read && m.nets != nil && name != "" {
		if m.sys.isDir(dir) { // bonding_masters is a file
			is := m.sys.net(name, dir)
			is.PCI = m.nested.Path(is.PCI)
			n = &is
		}
		m.nets[name] = n
	}
	return n
}

// Wired reports that an interface has a device, or is a bond or a VLAN. It reads less than Net does: a bridge of containers has a thousand ports.
func (m *Machine) Wired(name string) bool {
	if m.nets == nil || name == "" {
		return false
	}
	dir := "class/net/" + name
	return m.sys.has(dir+"/device") || m.sys.has(dir+"/bonding") || m.sys.uevent(dir, "DEVTYPE") == "vlan"
}

// Nets reads all interfaces, in natural order of their names.
func (m *Machine) Nets() (all []Net) {
	if m.nets == nil {
		return nil
	}
	for _, name := range m.sys.names("class/net") {
		if n := m.Net(name); n != nil {
			all = append(all, *n)
		}
	}
	return all
}

// Device finds an RDMA device by name. It returns nil if there is none.
func (m *Machine) Device(name string) *RDMA {
	i := slices.IndexFunc(m.RDMA, func(r RDMA) bool { return r.Name == name })
	if i < 0 {
		return nil
	}
	return &m.RDMA[i]
}

// RDMAOf finds the RDMA device of an interface. It returns nil if there is none.
func (m *Machine) RDMAOf(net string) *RDMA {
	i := slices.IndexFunc(m.RDMA, func(r RDMA) bool { return slices.Contains(r.Nets, net) })
	if i < 0 {
		return nil
	}
	return &m.RDMA[i]
}

func (t tree) net(name, dir string) Net {
	n := Net{
		Name: name, Index: t.number(dir+"/ifindex", 0), OperState: t.word(dir + "/operstate"),
		Carrier: t.number(dir+"/carrier", -1), Mbps: t.number(dir+"/speed", -1), MTU: t.number(dir+"/mtu", 0), NUMA: -1,
		Loopback: t.number(dir+"/type", 0) == 772, // ARPHRD_LOOPBACK
		Bridge:   t.has(dir + "/bridge"), Bond: t.has(dir + "/bonding"),
	}
	if n.Mbps <= 0 {
		n.Mbps = -1
	}
	device, real := t.resolve(dir + "/device")
	n.Virtual = !real
	if real {
		n.PCI, n.NUMA = t.pci(device), t.numa(device)
		n.Driver, n.Bus = t.link(device+"/driver"), t.link(device+"/subsystem")
	}
	kind := t.uevent(dir, "DEVTYPE")
	n.VLAN = kind == "vlan"
	n.Wireless = kind == "wlan" || t.has(dir+"/wireless") || t.has(dir+"/phy80211")
	n.Tunnel = t.has(dir+"/tun_flags") || tunnel(kind, t.number(dir+"/type", 0))
	if t.has(dir + "/brport") {
		n.PortOf = orElse(t.link(dir+"/brport/bridge"), orElse(t.link(dir+"/master"), "?"))
	}
	if t.has(dir + "/bonding_slave") {
		n.BondOf = orElse(t.link(dir+"/master"), "?")
	}
	if n.Bridge {
		n.Over = t.names(dir + "/brif")
	} else {
		for _, name := range t.names(dir) {
			if below, ok := strings.CutPrefix(name, "lower_"); ok {
				n.Over = append(n.Over, below)
			}
		}
	}
	return n
}

// tunnel recognizes tunnels by the kernel's device type or by the type of their link layer.
func tunnel(kind string, arphrd int) bool {
	switch kind {
	case "vxlan", "geneve", "wireguard", "gre", "gretap", "ip6gre", "bareudp":
		return true
	}
	switch arphrd {
	case 512, 768, 769, 776, 778, 823, 65534: // PPP, IPIP, IP6IP6, SIT, GRE, IP6GRE, none
		return true
	}
	return false
}

func (t tree) rdma(name, class string) RDMA {
	dir := "class/" + class + "/" + name
	r := RDMA{Name: name, Class: class, Mbps: -1, NUMA: -1}
	if device, ok := t.resolve(dir + "/device"); ok {
		r.PCI, r.NUMA, r.Driver = t.pci(device), t.numa(device), t.link(device+"/driver")
		r.Nets = t.names(device + "/net")
	}
	if parent := t.word(dir + "/parent"); len(r.Nets) == 0 && parent != "" { // rxe, siw
		r.Nets = []string{parent}
	}
	for _, port := range t.names(dir + "/ports") {
		at := dir + "/ports/" + port
		if ndev := t.word(at + "/gid_attrs/ndevs/0"); ndev != "" && len(r.Nets) == 0 {
			r.Nets = []string{ndev}
		}
		_, state, _ := strings.Cut(t.word(at+"/state"), ": ")
		if r.State == "" || state == "ACTIVE" && r.State != "ACTIVE" {
			r.State, r.Mbps, r.Link = state, rate(t.word(at+"/rate")), t.word(at+"/link_layer")
		}
	}
	return r
}

// rate parses "400 Gb/sec (4X NDR)" to megabits per second; -1 if the text has another form.
func rate(s string) int {
	number, _, _ := strings.Cut(s, " ")
	g, err := strconv.ParseFloat(number, 64)
	if err != nil || !(g > 0 && g < 1e6) || !strings.Contains(s, "Gb/sec") {
		return -1
	}
	return int(g * 1000)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
