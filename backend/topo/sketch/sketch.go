// Package sketch makes a sysfs from a short description of a machine: for tests, and for gorail devices --topology.
//
// A description has one device per line: "net NAME key=value ..." or "rdma NAME key=value ...". Values with spaces are
// in double quotes, and '#' begins a comment. The bus: pci=root/bridge/.../function (the address with all its bridges),
// virtio=N below it, usb=path below it. Without pci an interface is virtual.
//
// Files of the same name: ifindex operstate carrier speed mtu type devtype (net); state rate link_layer (rdma, port 1).
// Both: numa driver vendor. Interfaces: master=NAME with brport or bonding_slave, the marks bridge bonding tun
// wireless, over=a,b. RDMA: class=cxi, nets=a,b, parent=NAME, and direct=root/.../function for the function by which the card reaches
// memory of GPUs (ConnectX-8 Data Direct).
//
// "node N cpus=0-3,8" is a NUMA node with its processors. "gpu NAME pci=..." is a function that appears only on its
// bus, with numa, vendor and class if they are given.
package sketch

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing/fstest"
)

// Words begin the lines of a description.
var Words = []string{"net", "rdma", "node", "gpu"}

// Parse returns the sysfs of the machine that a text describes.
func Parse(text string) (fstest.MapFS, error) {
	s := sysfs{fstest.MapFS{}}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line, _, _ = strings.Cut(line, "#")
		f := fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) < 2 || !slices.Contains(Words, f[0]) {
			return nil, fmt.Errorf("line %d is not a device: %q; begin it with one of %s and a name", number, strings.TrimSpace(line), strings.Join(Words, ", "))
		}
		values := map[string]string{}
		for _, kv := range f[2:] {
			k, v, _ := strings.Cut(kv, "=")
			values[k] = v
		}
		switch f[0] {
		case "net":
			s.net(f[1], values)
		case "rdma":
			s.rdma(f[1], values)
		case "gpu":
			if device := s.device(values); device != "" && values["class"] != "" {
				s.file(device+"/class", values["class"])
			}
		case "node":
			s.MapFS["devices/system/node/node"+f[1]+"/cpulist"] = &fstest.MapFile{Data: []byte(values["cpus"] + "\n")}
		}
	}
	return s.MapFS, nil
}

// fields splits at spaces outside quotes.
func fields(line string) []string {
	quoted := false
	out := strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ' ' || r == '\t' || r == '\n')
	})
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], `"`, "")
	}
	return out
}

type sysfs struct{ fstest.MapFS }

func (s sysfs) file(name, content string) {
	s.MapFS[name] = &fstest.MapFile{Data: []byte(content + "\n")}
}

func (s sysfs) folder(name string) { s.MapFS[name] = &fstest.MapFile{Mode: os.ModeDir | 0o755} }

// link creates a relative link, as all links in sysfs are.
func (s sysfs) link(name, to string) {
	up := strings.Repeat("../", strings.Count(name, "/"))
	s.MapFS[name] = &fstest.MapFile{Data: []byte(up + to), Mode: os.ModeSymlink | 0o777}
}

// device creates the device itself and returns its path; "" for a virtual one.
func (s sysfs) device(v map[string]string) string {
	if v["pci"] == "" {
		return ""
	}
	function := "devices/" + v["pci"]
	dir, bus := function, "pci"
	if v["virtio"] != "" {
		dir, bus = function+"/virtio"+v["virtio"], "virtio"
	}
	if v["usb"] != "" {
		dir, bus = function+"/"+v["usb"], "usb"
	}
	s.folder(dir)
	s.file(function+"/numa_node", or(v["numa"], "-1"))
	s.file(function+"/uevent", "PCI_SLOT_NAME="+path.Base(function))
	s.link(dir+"/subsystem", "bus/"+bus)
	s.link("bus/pci/devices/"+path.Base(function), function)
	if v["vendor"] != "" {
		s.file(function+"/vendor", v["vendor"])
	}
	if v["driver"] != "" {
		s.link(dir+"/driver", "bus/"+bus+"/drivers/"+v["driver"])
	}
	return dir
}

func (s sysfs) net(name string, v map[string]string) {
	device := s.device(v)
	dir := "devices/virtual/net/" + name
	if device != "" {
		dir = device + "/net/" + name
		s.link(dir+"/device", device)
	}
	s.link("class/net/"+name, dir)
	s.folder(dir)
	for _, file := range []string{"ifindex", "operstate", "carrier", "speed"} {
		if v[file] != "" {
			s.file(dir+"/"+file, v[file])
		}
	}
	s.file(dir+"/mtu", or(v["mtu"], "1500"))
	s.file(dir+"/type", or(v["type"], "1"))
	s.file(dir+"/uevent", strings.TrimPrefix("DEVTYPE="+v["devtype"]+"\n", "DEVTYPE=\n")+"INTERFACE="+name)
	for _, mark := range []string{"bridge", "bonding", "brport", "bonding_slave", "wireless"} {
		if _, ok := v[mark]; ok {
			s.folder(dir + "/" + mark)
		}
	}
	if _, ok := v["tun"]; ok {
		s.file(dir+"/tun_flags", "0x1001")
	}
	if _, ok := v["bridge"]; ok {
		s.folder(dir + "/brif")
	}
	if master := v["master"]; master != "" {
		s.link(dir+"/master", "devices/virtual/net/"+master)
		if _, ok := v["brport"]; ok {
			s.link(dir+"/brport/bridge", "devices/virtual/net/"+master)
			s.link("devices/virtual/net/"+master+"/brif/"+name, dir+"/brport")
		}
	}
	for _, below := range list(v["over"]) {
		s.link(dir+"/lower_"+below, "class/net/"+below)
	}
}

func (s sysfs) rdma(name string, v map[string]string) {
	device := s.device(v)
	class := or(v["class"], "infiniband")
	dir := "devices/virtual/" + class + "/" + name
	if device != "" {
		dir = device + "/" + class + "/" + name
		s.link(dir+"/device", device)
	}
	s.link("class/"+class+"/"+name, dir)
	s.folder(dir)
	for _, net := range list(v["nets"]) {
		s.folder(device + "/net/" + net)
	}
	if v["direct"] != "" && device != "" {
		s.direct(name, "devices/"+v["pci"], v["direct"])
	}
	if v["parent"] != "" {
		s.file(dir+"/parent", v["parent"])
	}
	for _, file := range []string{"state", "rate", "link_layer"} {
		if v[file] != "" {
			s.file(dir+"/ports/1/"+file, v[file])
		}
	}
}

// direct creates a Data Direct function, and the product data that says that it and a device belong to one card.
func (s sysfs) direct(card, device, pci string) {
	s.device(map[string]string{"pci": pci, "vendor": "0x15b3", "driver": "mlx5_data_direct"})
	s.link("bus/pci/drivers/mlx5_data_direct/"+path.Base(pci), "devices/"+pci)
	fields := "V3" + string(byte(len(card))) + card
	vpd := "\x82\x04\x00Card\x90" + string([]byte{byte(len(fields)), byte(len(fields) >> 8)}) + fields + "\x78"
	for _, function := range []string{device, "devices/" + pci} {
		s.MapFS[function+"/vpd"] = &fstest.MapFile{Data: []byte(vpd)}
	}
}

func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
