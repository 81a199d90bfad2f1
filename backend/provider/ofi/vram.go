package ofi

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
	"gorail/backend/topo"
)

// gpuRail is a rail of hardware that may access GPU memory.
type gpuRail struct {
	*rail
	gpus *gpu.Direct
	no   error // why the rail cannot access GPU memory
}

var _ provider.VRAM = (*gpuRail)(nil)

// RegisterVRAM implements provider.VRAM: fi_mr_regattr with FI_MR_DMABUF or with an address, both with FI_HMEM_CUDA.
func (g *gpuRail) RegisterVRAM(addr, length uint64, device int, peers option.Rights) (provider.MR, error) {
	if g.no != nil {
		return nil, gpu.RangeError(g.dev.Fabric+"/"+g.dev.Name, addr, length, device, fmt.Errorf("%w: %w", provider.ErrNoVRAM, g.no))
	}
	m, err := g.gpus.Register(addr, length, device, peers)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Close implements provider.Rail.
func (g *gpuRail) Close() error {
	if err := g.rail.Close(); err != nil {
		return err
	}
	return g.gpus.Close()
}

// Values of Options.HMEM.
const (
	HMEMAuto = "auto"
	HMEMOn   = "on"
	HMEMOff  = "off"
)

// noHMEM returns why FI_HMEM is not requested from devices; nil: it is requested. The request alone may create a CUDA
// context (efa tries a registration). By default it is therefore only made in processes that have a context.
func noHMEM(hmem, cuda string) error {
	switch {
	case hmem == HMEMOff:
		return errors.New("option fi_hmem=off")
	case hmem == HMEMOn || gpu.InUse(cuda):
		return nil
	}
	return errors.New("no CUDA context was in this process when the agent was made, and libfabric was not asked for FI_HMEM, which may make one: " +
		"use the GPU first, or set option fi_hmem=on")
}

// withGPUs returns a rail for GPU memory if the device is hardware. asked is why FI_HMEM was not requested.
func (r *rail) withGPUs(sys fs.FS, cuda string, asked error) provider.Rail {
	if !r.dev.Hardware {
		return r
	}
	g := &gpuRail{rail: r, no: asked}
	lib := r.lib()
	switch {
	case asked == nil && !r.entry.hmem:
		g.no = fmt.Errorf("the provider offers no FI_HMEM for this device (%s)", lib.Describe())
	case asked == nil && r.c.NoP2P() != nil:
		g.no = fmt.Errorf("FI_OPT_FI_HMEM_P2P: the provider does not guarantee that the device itself moves GPU memory: %w (%s)", errors.Unwrap(r.c.NoP2P()), lib.Describe())
	}
	d := gpu.NIC{Name: r.dev.Label(), Sys: sys, PCI: topo.PathOf(sys, r.entry.PCI), How: "FI_HMEM_CUDA"}
	if v := lib.API(); v < libfabric.APIDMABuf {
		d.NoDMABuf = fmt.Errorf("FI_MR_DMABUF: %w (libfabric %s; needs 1.20)", syscall.EOPNOTSUPP, v)
	}
	d.DMABuf = func(fd int, offset, length, addr uint64, device int, peers option.Rights) (provider.MR, error) {
		return r.registerGPU("fi_mr_regattr with FI_MR_DMABUF", libfabric.Memory{Addr: addr, Length: length, Device: device, DMABuf: fd, Offset: offset, Peers: peers})
	}
	d.Address = func(addr, length uint64, device int, peers option.Rights) (provider.MR, error) {
		mr, err := r.registerGPU("fi_mr_regattr with FI_HMEM_CUDA", libfabric.Memory{Addr: addr, Length: length, Device: device, DMABuf: -1, Peers: peers})
		if err != nil {
			err = fmt.Errorf("%w%s", err, gpu.Peermem(sys))
		}
		return mr, err
	}
	g.gpus = gpu.NewDirect(cuda, d)
	return g
}
