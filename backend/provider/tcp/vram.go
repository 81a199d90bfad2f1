package tcp

import (
	"fmt"
	"unsafe"

	"gorail/backend/access"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/bounce"
	"gorail/backend/provider/vram"
)

var (
	_ provider.VRAM      = (*rail)(nil)
	_ provider.Renewable = (*gpuRegion)(nil)
)

// RegisterVRAM implements provider.VRAM. The first memory of a GPU takes 4 MiB of pinned memory. Implements
// cuPointerGetAttributes, cuStreamCreate, cuMemHostAlloc.
func (r *rail) RegisterVRAM(addr, length uint64, device int, peers access.Rights) (provider.MR, error) {
	m, err := r.bounces.gpus.Look(r.dev.Label(), addr, length, device)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, r.error(provider.ErrRegister, errClosed)
	}
	g, err := r.bounces.of(r.c, m.Driver, device)
	if err != nil {
		return nil, vram.Refused(r.dev.Label(), addr, length, device, fmt.Errorf("bounce buffers: %w", err))
	}
	entry, err := r.enter(addr, length, peers, g, m.Driver.Ours(addr, length))
	if err != nil {
		return nil, err
	}
	return &gpuRegion{region: entry, mem: m, gpu: g}, nil
}

// gpuRegion is a region of GPU memory.
type gpuRegion struct {
	*region
	mem vram.Memory
	gpu *bounce.GPU
}

// Desc tells the rail that a local address is one of this GPU.
func (m *gpuRegion) Desc() unsafe.Pointer { return m.gpu.Core() }

// Same implements provider.Renewable.
func (m *gpuRegion) Same() error { return m.mem.Same() }
