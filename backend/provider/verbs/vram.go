package verbs

import (
	"fmt"
	"syscall"
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/verbs/ibverbs"
	"gorail/backend/topo"
)

var _ provider.VRAM = (*rail)(nil)

// RegisterVRAM implements provider.VRAM.
func (r *rail) RegisterVRAM(addr, length uint64, device int, peers option.Rights) (provider.MR, error) {
	m, err := r.gpus.Register(addr, length, device, peers)
	if err != nil {
		return nil, err
	}
	return gpuRegion{m}, nil
}

// gpuRegion implements provider.GPUMemory.
type gpuRegion struct{ *gpu.DirectRegion }

// Desc marks the descriptor: the CPU cannot read this memory.
func (g gpuRegion) Desc() unsafe.Pointer { return unsafe.Add(g.DirectRegion.Desc(), ibverbs.GPUMark) }

// direct describes how the device registers GPU memory: ibv_reg_dmabuf_mr, or ibv_reg_mr if the module nvidia_peermem
// is loaded.
func (r *rail) direct(path string) *gpu.Direct {
	d := gpu.NIC{Name: r.dev.Label(), Sys: r.opt.Sys, How: "nvidia_peermem",
		PCI: topo.RDMAPath(r.opt.Sys, "infiniband", r.entry.port.device)}
	if !r.dmabuf {
		d.NoDMABuf = fmt.Errorf("ibv_reg_dmabuf_mr: %w (needs Linux 5.12, rdma-core 34 and a device driver with dmabuf support)", syscall.EOPNOTSUPP)
	}
	d.DMABuf = func(fd int, offset, length, addr uint64, _ int, peers option.Rights) (provider.MR, error) {
		return r.RegisterDMABuf(fd, offset, length, addr, peers)
	}
	d.Address = func(addr, length uint64, _ int, peers option.Rights) (provider.MR, error) {
		m, err := r.register(addr, peers, func(flags uint32) (*ibverbs.MR, error) { return r.c.Register(addr, length, flags) })
		if err != nil {
			return nil, fmt.Errorf("%w%s", err, gpu.Peermem(r.opt.Sys))
		}
		return m, nil
	}
	return gpu.NewDirect(path, d)
}
