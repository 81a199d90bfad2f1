package tcp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
	"gorail/backend/topo"
)

// NVLinkOptions are options of NVLink.
type NVLinkOptions struct {
	CUDAPath string   // of the GPU driver's library; "": gpu.DefaultPath
	Channels string   // folder of IMEX channels; "": gpu.DefaultIMEX
	Control  []string // option control_devices: interfaces for the rail's connections
	Copies   gpu.How  // copies between GPUs
	Off      string   // why no memory of other hosts may be mapped; "": it may
}

// NVLink is the provider of NVLink between hosts (GB200, GB300 racks). A rail of it carries memory of GPUs alone: GPUs copy to memory of the
// peer's GPUs, which is mapped here. Messages, and a question to the owner for each copy, go over a TCP connection.
type NVLink struct {
	sockets *Provider
	o       NVLinkOptions
}

var _ provider.Provider = (*NVLink)(nil)

// NewNVLink makes the provider. sockets has the settings of connections.
func NewNVLink(sockets Options, o NVLinkOptions) *NVLink {
	if o.CUDAPath == "" {
		o.CUDAPath = gpu.DefaultPath
	}
	if o.Channels == "" {
		o.Channels = gpu.DefaultIMEX
	}
	sockets.Threads, sockets.Compression = 1, sock.NeverPack
	return &NVLink{sockets: New(sockets), o: o}
}

// Name implements provider.Provider.
func (*NVLink) Name() string { return provider.NVLink }

// Discover implements provider.Provider: there is one device, if all that NVLink between hosts needs is here. ErrAbsent: there is no such fabric.
func (p *NVLink) Discover(ctx context.Context, f provider.Filter) ([]provider.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if p.o.CUDAPath == gpu.DefaultPath {
		if !gpu.MayReachHosts("/", p.o.Channels) { // most machines: NVML is not loaded, which would wake all GPUs
			return nil, fmt.Errorf("%w: %w: no IMEX channel and no GPU of a rack are here", provider.ErrNoDevice, provider.ErrAbsent)
		}
		if err := gpu.Present(p.o.CUDAPath); err != nil {
			return nil, fmt.Errorf("%w: %w: %w", provider.ErrNoDevice, provider.ErrAbsent, err)
		}
	}
	all, err := gpu.Fabric(gpu.NVMLPath(p.o.CUDAPath))
	if errors.Is(err, gpu.ErrNVMLStuck) {
		return nil, fmt.Errorf("%w: NVLink between hosts: %w", provider.ErrNoDevice, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w: %w", provider.ErrNoDevice, provider.ErrAbsent, err)
	}
	domain, gpus, err := joined(all)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", provider.ErrNoDevice, err)
	}
	if p.o.Off != "" {
		return nil, fmt.Errorf("%w: NVLink between hosts: %s", provider.ErrNoDevice, p.o.Off)
	}
	if there, usable := gpu.Channels(p.o.Channels); len(usable) == 0 {
		return nil, fmt.Errorf("%w: NVLink between hosts: %w", provider.ErrNoDevice, noChannel(p.o.Channels, there))
	}
	at, err := p.address(f)
	if err != nil {
		return nil, fmt.Errorf("%w: NVLink between hosts: %w", provider.ErrNoDevice, err)
	}
	return []provider.Device{{Provider: provider.NVLink, Fabric: provider.NVLink, Name: "gpus", Subnet: domain, Confined: true, NUMA: -1, Opaque: nvlinkDevice{at, gpus}}}, nil
}

// nvlinkDevice is a Device's Opaque.
type nvlinkDevice struct {
	at   provider.Device // of the sockets
	gpus map[[16]byte]bool
}

func noChannel(dir string, there []string) error {
	if len(there) > 0 {
		return fmt.Errorf("this process may not open an IMEX channel (%s in %s): give the container's user access to the device node", strings.Join(there, ", "), dir)
	}
	return fmt.Errorf("there is no IMEX channel here (%s is empty or not there): give the container a ComputeDomain (Kubernetes: NVIDIA's DRA driver) or --device %s/channel0; on the node: modprobe nvidia NVreg_CreateImexChannel0=1",
		dir, gpu.DefaultIMEX)
}

// joined returns the domain of the machine's GPUs, and the GPUs in it. GPUs of another domain than the first are left out.
func joined(all []gpu.FabricInfo) (domain string, gpus map[[16]byte]bool, err error) {
	gpus = map[[16]byte]bool{}
	var states []string
	for i := range all {
		f := &all[i]
		if d := f.Domain(); d != "" && (domain == "" || d == domain) {
			domain, gpus[f.UUID] = d, true
		}
		if f.Asked == 0 && f.State != gpu.FabricNone && (f.State != gpu.FabricJoined || f.Status != 0) {
			states = append(states, fmt.Sprintf("GPU %d: fabric state %v, status %d", i, f.State, f.Status))
		}
	}
	switch {
	case domain != "":
		return domain, gpus, nil
	case len(states) > 0:
		return "", nil, fmt.Errorf("NVLink between hosts: no GPU has joined the fabric (%s): is the fabric manager of the rack running? nvidia-smi -q | grep -A5 Fabric shows the states, which a GPU reset or a reboot begins anew",
			strings.Join(states, "; "))
	}
	return "", nil, fmt.Errorf("%w: no GPU here is in a cluster of several hosts", provider.ErrAbsent)
}

// errNoInterface is the error of a host without a usable interface.
var errNoInterface = errors.New("no network interface that is up has an address for the rail's connections")

// address chooses the interface of the rail's connections: one that options control_devices and devices admit, else any; the fastest that is up.
func (p *NVLink) address(f provider.Filter) (provider.Device, error) {
	list, err := p.sockets.o.Interfaces()
	if err != nil {
		return provider.Device{}, err
	}
	up := map[string]bool{}
	for _, i := range list {
		up[i.Name] = i.Up
	}
	for _, want := range [][]string{p.o.Control, f.Devices, nil} {
		found, err := devices(p.sockets.o.Sys, list, provider.Filter{Devices: want})
		if err != nil {
			continue
		}
		for _, d := range found {
			if up[d.Name] && (!d.Loopback || topo.Patterns(want).Judge(-1, d.Name) == topo.Named || len(found) == 1) {
				return d, nil
			}
		}
	}
	return provider.Device{}, errNoInterface
}

// Open implements provider.Provider.
func (p *NVLink) Open(d provider.Device) (provider.Rail, error) {
	is, ok := d.Opaque.(nvlinkDevice)
	if !ok {
		return nil, fmt.Errorf("%w: %s was not found by Discover of provider %q", provider.ErrNoDevice, d.Label(), provider.NVLink)
	}
	return p.open(d, is)
}
