package topo

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Nested are PCI paths by address, as NCCL's topology file nests them. Clouds give machines such a file where the hypervisor shows every
// function at a root of its own.
type Nested map[string]PCIPath

// Bounds of a topology file. Azure's largest has 5 KiB and four levels.
const (
	mostNCCLBytes = 1 << 20
	mostNCCLDepth = 64
)

// topologyd is where NVIDIA's virtual topology daemon writes its file, and NCCL looks for it.
const topologyd = "/var/run/nvidia-topologyd/virtualTopology.xml"

// NCCLFile returns the topology file that NCCL would read: NCCL_TOPO_FILE in the environment, in ~/.nccl.conf (or what NCCL_CONF_FILE names) or in
// /etc/nccl.conf, else that of NVIDIA's topology daemon if it is there; "" if there is none.
func NCCLFile(lookup func(string) (string, bool)) string {
	if path, _ := lookup("NCCL_TOPO_FILE"); path != "" {
		return path
	}
	own, _ := lookup("NCCL_CONF_FILE")
	if home, _ := lookup("HOME"); own == "" && home != "" {
		own = filepath.Join(home, ".nccl.conf")
	}
	for _, conf := range []string{own, "/etc/nccl.conf"} {
		if path := confValue(conf, "NCCL_TOPO_FILE"); path != "" {
			return path
		}
	}
	if _, err := os.Stat(topologyd); err == nil {
		return topologyd
	}
	return ""
}

// confValue reads a line NAME=VALUE of NCCL's configuration file; "" if there is none.
func confValue(file, name string) string {
	f, err := os.Open(file) // of root or of the user: the same that NCCL reads
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostNCCLBytes))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && key == name {
			return value
		}
	}
	return ""
}

// ReadNCCLFile reads a topology file. An error is a reason to go without it.
func ReadNCCLFile(path string) (Nested, error) {
	if i, err := os.Stat(path); err == nil && !i.Mode().IsRegular() {
		return nil, fmt.Errorf("NCCL's topology file %s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("NCCL's topology file: %w", err)
	}
	defer f.Close()
	n, err := ParseNCCL(f)
	if err != nil {
		return nil, fmt.Errorf("NCCL's topology file %s: %w", path, err)
	}
	return n, nil
}

// ParseNCCL reads NCCL's XML: a system of cpu elements, and below these pci elements with a busid. A pci element with others in it is a switch.
// Each switch becomes an upstream and a downstream port, and each function at a cpu has a root port, so that Between and SwitchOrPort
// give what they would give for real bridges. Other elements (gpu, nic, net, nvlink) say nothing about places.
func ParseNCCL(r io.Reader) (Nested, error) {
	limited := &io.LimitedReader{R: r, N: mostNCCLBytes + 1}
	p := ncclParser{found: Nested{}, bridges: map[string]bool{}}
	d := xml.NewDecoder(limited)
	for {
		token, err := d.Token()
		if limited.N <= 0 {
			return nil, fmt.Errorf("more than %d bytes", mostNCCLBytes)
		}
		if errors.Is(err, io.EOF) {
			return p.result()
		}
		if err != nil {
			return nil, err
		}
		switch t := token.(type) {
		case xml.StartElement:
			if err := p.start(t); err != nil {
				return nil, err
			}
		case xml.EndElement:
			p.open = p.open[:len(p.open)-1] // the decoder has matched it
		}
	}
}

// ncclParser collects functions.
type ncclParser struct {
	open    []ncclElement // from the root down
	found   Nested
	bridges map[string]bool // functions with others below them
}

type ncclElement struct {
	kind string
	path PCIPath // of a cpu its name alone
}

func (p *ncclParser) start(t xml.StartElement) error {
	if len(p.open) >= mostNCCLDepth {
		return fmt.Errorf("elements nest deeper than %d", mostNCCLDepth)
	}
	attribute := func(name string) string {
		for _, a := range t.Attr {
			if a.Name.Local == name {
				return a.Value
			}
		}
		return ""
	}
	e := ncclElement{kind: t.Name.Local}
	above := ncclElement{}
	if len(p.open) > 0 {
		above = p.open[len(p.open)-1]
	}
	switch {
	case above.kind == "" && (e.kind != "system" || attribute("version") != "1"):
		return fmt.Errorf("not a topology of NCCL: it begins with <%s version=%q>, not with <system version=\"1\">", e.kind, attribute("version"))
	case e.kind == "cpu" && above.kind == "system":
		e.path = PCIPath{"cpu" + attribute("numaid")}
	case e.kind == "pci" && len(above.path) > 0: // of a cpu, or of a pci below one
		address, err := cleanAddress(attribute("busid"))
		if err != nil {
			return err
		}
		e.path = p.below(above, address)
	}
	p.open = append(p.open, e)
	return nil
}

// below adds a function to the element above it. The first of an address counts.
func (p *ncclParser) below(above ncclElement, address string) PCIPath {
	slot, _, _ := strings.Cut(address, ".")
	last := above.path[len(above.path)-1]
	path := make(PCIPath, 0, len(above.path)+2)
	path = append(append(path, above.path...), last+">"+slot, address) // the port by which it hangs there
	if above.kind == "pci" {
		p.bridges[last] = true
	}
	if _, known := p.found[address]; !known {
		p.found[address] = path
	}
	return path
}

func (p *ncclParser) result() (Nested, error) {
	for address := range p.bridges {
		delete(p.found, address)
	}
	if len(p.found) == 0 {
		return nil, errors.New("it names no PCI function")
	}
	return p.found, nil
}

// cleanAddress writes an address as sysfs does.
func cleanAddress(s string) (string, error) {
	a, err := parseAddress(s)
	if err != nil {
		return "", fmt.Errorf("busid: %w", err)
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", a[0], a[1], a[2], a[3]), nil
}

// aSwitch is the length of a path with a switch: root, root port, the switch's two ports, function.
const aSwitch = 5

// Path returns the path that the file has for a function if sysfs shows no switch above it; else the path that sysfs shows.
func (n Nested) Path(p PCIPath) PCIPath {
	if nested, ok := n[p.Addr()]; ok && len(p) < aSwitch {
		return nested
	}
	return p
}

// NestFile gives the devices of the machine the places that NCCL's topology file has for them. It is called before others use the machine. An error
// says why the file was ignored: it cannot be read, or is about another machine.
func (m *Machine) NestFile(path string) error {
	n, err := ReadNCCLFile(path)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(m.RDMA, func(r RDMA) bool { return n[r.PCI.Addr()] != nil }) {
		return fmt.Errorf("NCCL's topology file %s names no RDMA device of this machine", path)
	}
	m.Nest(n)
	return nil
}

// Nest is NestFile for a file that has been read.
func (m *Machine) Nest(n Nested) {
	m.nested = n
	for i := range m.RDMA {
		m.RDMA[i].PCI = n.Path(m.RDMA[i].PCI)
	}
}

// Path is PathOf with the places of NCCL's topology file, if the machine has one.
func (m *Machine) Path(address string) PCIPath {
	if m.sys.FS == nil {
		return nil
	}
	return m.nested.Path(PathOf(m.sys.FS, address))
}
