package ofi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
	"gorail/backend/topo"
)

// entry is a device that libfabric lists.
type entry struct {
	*libfabric.Info
	hmem   bool  // listed with FI_HMEM
	noHMEM error // why FI_HMEM was not requested
}

// sockets reports whether the entry uses the kernel's IP stack: it has an IP address and no NIC or PCI device.
func (e *entry) sockets() bool { return e.Src.IsValid() && e.NIC == "" && e.PCI == "" }

// library is what discover wants of libfabric.
type library struct {
	name string // with its version, for errors
	// list returns the entries whose provider is exactly fabric, in libfabric's order.
	list func(fabric string) ([]*entry, error)
}

// errTCP is why libfabric's own tcp provider ("net" in 1.17) is not driven.
var errTCP = errors.New("libfabric's tcp is not driven: whoever connects to it can end the process; provider=tcp is GORAIL's own, over the same interfaces")

// discover turns a filter into devices, best first. Errors wrap provider.ErrUnusable or provider.ErrNoDevice.
func discover(ctx context.Context, lib library, sys fs.FS, f provider.Filter) ([]provider.Device, error) {
	globs, err := f.Patterns()
	if err != nil {
		return nil, err
	}
	fabrics := f.Fabrics
	if len(fabrics) == 0 {
		fabrics = []string{"efa", "cxi"}
	}
	var out []provider.Device
	var failed error
	for _, name := range fabrics {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		found, err := discoverFabric(lib, sys, globs, name)
		if errors.Is(err, provider.ErrUnusable) {
			return nil, err
		}
		if failed == nil {
			failed = err
		} else if err != nil {
			failed = fmt.Errorf("%w; %w", failed, err)
		}
		out = append(out, found...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: option provider=%s: %w; %s", provider.ErrNoDevice, strings.Join(fabrics, ","), failed, lib.name)
	}
	return out, nil
}

// discoverFabric lists the devices of one fabric that match the globs.
func discoverFabric(lib library, sys fs.FS, globs topo.Patterns, name string) ([]provider.Device, error) {
	if name == "tcp" || name == "net" {
		return nil, fmt.Errorf("%w: fabric %q: %w", provider.ErrUnusable, name, errTCP)
	}
	entries, failed := lib.list(name)
	if len(entries) == 0 {
		if failed == nil {
			failed = errors.New("no endpoints of the kind FI_EP_RDM with FI_RMA and FI_MSG")
		}
		return nil, fmt.Errorf("fabric %q: %w", name, failed)
	}
	var out []provider.Device
	var seen []string
	for _, e := range oneEach(entries) {
		seen = append(seen, e.Domain)
		if globs.May(e.Domain, e.NIC) {
			out = append(out, device(sys, e))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("fabric %q: %w devices=%s (those up: %s)", name, provider.ErrFiltered, globs,
			strings.Join(seen, ", "))
	}
	slices.SortStableFunc(out, provider.Device.Compare)
	return out, nil
}

// oneEach picks one entry per device. Sockets prefer IPv4 to global IPv6. Hardware prefers the entry with the largest
// messages (efa before efa-direct). Interfaces that are down are included: the code that chooses rails reports them.
func oneEach(entries []*entry) []*entry {
	best := make(map[string]*entry)
	var order []string
	for _, e := range entries {
		if e.sockets() && !usableAddr(e.Src) {
			continue
		}
		old := best[e.Domain]
		if old == nil {
			order = append(order, e.Domain)
		}
		if old == nil || preferred(e, old) {
			best[e.Domain] = e
		}
	}
	out := make([]*entry, 0, len(order))
	for _, domain := range order {
		out = append(out, best[domain])
	}
	return out
}

func usableAddr(a netip.Addr) bool {
	return !a.IsLinkLocalUnicast() && !a.IsUnspecified() && !a.IsMulticast()
}

func preferred(e, old *entry) bool {
	if e.sockets() {
		return e.Src.Is4() && !old.Src.Is4()
	}
	return e.MaxMsg > old.MaxMsg
}

func device(sys fs.FS, e *entry) provider.Device {
	d := provider.Device{
		Provider: "ofi", Fabric: e.Provider, Name: e.Domain, Subnet: e.Fabric, Hardware: !e.sockets(),
		Mbps: e.BitsPerSecond / 1e6, NUMA: -1, Opaque: e,
	}
	if e.Src.IsValid() {
		d.Addr = e.Src.String()
		d.Loopback = e.Src.IsLoopback()
	}
	switch {
	case e.sockets():
		d.NUMA = topo.Number(sys, "class/net/"+e.Domain+"/device/numa_node", -1)
		if d.Mbps == 0 {
			d.Mbps = uint64(max(0, topo.Number(sys, "class/net/"+e.Domain+"/speed", 0))) // virtual interfaces report -1 or an error
		}
	case e.PCI != "":
		d.NUMA = topo.Number(sys, "bus/pci/devices/"+e.PCI+"/numa_node", -1)
	case e.Provider == "shm":
		d.Hardware, d.Loopback = false, true
	}
	return d
}

// asker lists devices of a library with the operator's settings.
type asker struct {
	*libfabric.Library
	asked libfabric.Hints // set by the operator; 0 is the provider's own choice
	tune  Tuning
	// why FI_HMEM is not requested; nil: FI_HMEM is requested
	noHMEM error
}

// List is the list of a library, by fi_getinfo. A fabric must offer delivery-complete operations. Without them a WRITE
// completes, and its notification is sent, before the data is in place.
func (a asker) List(fabric string) ([]*entry, error) {
	got, err := a.delivering(fabric)
	if len(got) > 0 {
		return got, err
	}
	if early, _ := (asker{Library: a.Library}).list(fabric, false, false); len(early) > 0 {
		return nil, fmt.Errorf("%w: %s/%s offers no FI_DELIVERY_COMPLETE: a WRITE would complete before its data is in place at the peer; "+
			"take another fabric with option provider, or a libfabric whose %s has it (option libfabric_path)", provider.ErrUnusable, fabric, early[0].Domain, fabric)
	}
	return got, err
}

// delivering returns the devices that offer FI_DELIVERY_COMPLETE.
func (a asker) delivering(fabric string) ([]*entry, error) {
	got, err := a.list(fabric, true, false)
	if err != nil || len(got) == 0 {
		return nil, err
	}
	return a.withHMEM(got, fabric), nil
}

// withHMEM replaces devices by their entries with FI_HMEM, if they offer it. Other devices stay unchanged.
func (a asker) withHMEM(got []*entry, fabric string) []*entry {
	if a.noHMEM != nil || !slices.ContainsFunc(got, func(e *entry) bool { return !e.sockets() }) {
		return got
	}
	able, err := a.list(fabric, true, true)
	if err != nil {
		return got
	}
	for i, e := range got {
		same := func(a *entry) bool {
			return a.Domain == e.Domain && a.Fabric == e.Fabric && a.Protocol == e.Protocol && a.Src == e.Src
		}
		if k := slices.IndexFunc(able, same); k >= 0 && !e.sockets() {
			able[k].hmem = true
			got[i] = able[k]
		}
	}
	return got
}

// list implements List, with or without FI_DELIVERY_COMPLETE and FI_HMEM.
func (a asker) list(fabric string, delivery, hmem bool) (out []*entry, err error) {
	h := a.asked
	h.Provider, h.Delivery, h.HMEM = fabric, delivery, hmem
	got, err := a.Library.List(h)
	for _, i := range got {
		if k := a.tune.key(i.Domain); k != nil && i.Provider == "cxi" {
			if err := i.SetKey(k.Service, k.VNI); err != nil {
				return nil, err
			}
		}
		out = append(out, &entry{Info: i, noHMEM: a.noHMEM})
	}
	return out, err
}
