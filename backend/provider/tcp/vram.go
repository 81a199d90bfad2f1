package tcp

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"gorail/backend/access"
	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/bounce"
	"gorail/backend/provider/vram"
)

// mostBounced is the largest transfer of GPU memory that goes through the rail's own bounce buffers. Larger ones are staged: that
// divides them among all shards.
const mostBounced = 1 << 20

// gpuRail is a rail that copies memory of GPUs by itself. It is the first shard of a device.
type gpuRail struct{ *rail }

var _ provider.VRAM = gpuRail{}

// streams numbers the streams of all rails: a stream takes one thread at a time, and each rail has its own lock.
var streams atomic.Int32

// firstStream is below the numbers of other streams of GPUs (backend/stage).
const firstStream = -16

// RegisterVRAM implements provider.VRAM. The first memory of a GPU takes 8 MiB of pinned memory. Implements
// cuPointerGetAttributes, cuStreamCreate, cuMemHostAlloc.
func (r gpuRail) RegisterVRAM(addr, length uint64, device int, peers access.Rights) (provider.MR, error) {
	m, err := r.gpus.Look(r.dev.Label(), addr, length, device)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g, err := r.bounceOf(m.Driver, device)
	if err != nil {
		return nil, vram.Refused(r.dev.Label(), addr, length, device, fmt.Errorf("bounce buffers: %w", err))
	}
	entry, err := r.enter(addr, length, peers, g)
	if err != nil {
		return nil, err
	}
	return &gpuRegion{region: entry, mem: m, gpu: g}, nil
}

// bounceOf returns the bounce buffers of a GPU. Under mu.
func (r gpuRail) bounceOf(d *gpu.Driver, device int) (*bounce.GPU, error) {
	if g := r.bounce[device]; g != nil || r.closed {
		return g, nil
	}
	g, err := bounce.New(d, device, firstStream-int(streams.Add(1)))
	if err != nil {
		return nil, err
	}
	if err := r.c.Use(g); err != nil {
		g.Free()
		return nil, err
	}
	r.bounce[device] = g
	return g, nil
}

// LastError implements provider.VRAM. It is always "": a failed copy fails its work request.
func (gpuRail) LastError() string { return "" }

// closeGPUs frees what RegisterVRAM has taken. The C rail is freed. Under mu.
func (r *rail) closeGPUs() error {
	for _, g := range r.bounce {
		g.Free()
	}
	if r.gpus == nil {
		return nil
	}
	if err := r.gpus.Close(); err != nil {
		return r.error(provider.ErrUnusable, err)
	}
	return nil
}

// gpuRegion is a region of GPU memory.
type gpuRegion struct {
	*region
	mem vram.Memory
	gpu *bounce.GPU
}

var _ provider.Renewable = (*gpuRegion)(nil)

// Desc tells the rail that a local address is one of this GPU.
func (m *gpuRegion) Desc() unsafe.Pointer { return m.gpu.Core() }

// Same implements provider.Renewable.
func (m *gpuRegion) Same() error { return m.mem.Same() }
