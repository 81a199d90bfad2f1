package tcp

import (
	"fmt"
	"sync/atomic"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/tcp/sock"
)

var _ provider.VRAM = (*rail)(nil)

// RegisterVRAM implements provider.VRAM. The first memory of a GPU takes 4 MiB of pinned memory, in a goroutine unless there are endpoints: eight
// rails took 40 ms of a first registration. Implements cuPointerGetAttributes, cuStreamCreate, cuMemHostAlloc.
func (r *rail) RegisterVRAM(addr, length uint64, device int, peers option.Rights) (provider.MR, error) {
	m, err := r.bounces.gpus.Ask(addr, length, device)
	if err != nil {
		return nil, gpu.RangeError(r.dev.Label(), addr, length, device, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, r.error(provider.ErrRegister, errClosed)
	}
	g, err := r.bounces.of(r.c, m.Driver, device)
	if err == nil && !g.Full() {
		err = r.fill(func(of *bounce) bool { return of == g && r.endpoints.Load() > 0 })
	}
	if err != nil {
		return nil, gpu.RangeError(r.dev.Label(), addr, length, device, err)
	}
	entry, err := r.note(addr, length, peers)
	if err != nil {
		return nil, err
	}
	entry.gpu, entry.mem, entry.ours = g, m, m.Driver.Ours(addr, length)
	g.regions.Add(1)
	return entry, nil
}

// mostBounced is the largest transfer of GPU memory that goes through the rail's own bounce buffers. Larger ones are staged: the
// 16 chunks of staging keep all shards busy.
const mostBounced = 1 << 20

// bounces are the bounce buffers of a rail, by GPU.
type bounces struct {
	gpus *gpu.LazyDriver
	by   map[int]*bounce

	failed map[int]*reported
}

// bounce are the bounce buffers for a GPU, and how many regions need them.
type bounce struct {
	*sock.GPU
	regions atomic.Int32
}

// streams numbers the streams of all rails: a stream takes one thread at a time, and each rail has its own lock.
var streams atomic.Int32

// firstStream is below the numbers of other streams of GPUs (backend/staging).
const firstStream = -16

// of returns the bounce buffers for a GPU, and begins to make them at first use. fill has an error.
func (b *bounces) of(r *sock.Rail, d *gpu.Driver, device int) (*bounce, error) {
	if g := b.by[device]; g != nil {
		return g, nil
	}
	of, err := sock.NewGPU(d, device, firstStream-int(streams.Add(1)))
	if err != nil {
		return nil, err
	}
	g := &bounce{GPU: of}
	if err := r.Use(of); err != nil {
		_ = g.Free() // nothing was posted
		return nil, err
	}
	if b.by == nil {
		b.by = map[int]*bounce{}
	}
	b.by[device] = g
	go func() { _ = g.Fill() }()
	return g, nil
}

// fill makes the bounce buffers of the GPUs that must have them, whose regions or endpoints come next. With mu held, but not meanwhile: the driver
// may be translating the kernels, and the engine's sweeper takes mu. A GPU without regions, whose buffers could not be made, holds up no link.
func (r *rail) fill(must func(*bounce) bool) error {
	for { // each round but the last fills one, or ends
		device, g := r.bounces.unfilled(must)
		if g == nil {
			return nil
		}
		r.mu.Unlock()
		err := g.Fill()
		r.mu.Lock()
		switch {
		case r.closed:
			return errClosed
		case err != nil && must(g):
			return fmt.Errorf("bounce buffers of GPU %d: %w", device, err)
		}
	}
}

// unfilled returns a GPU that must have bounce buffers and has none yet; nil: there is none.
func (b *bounces) unfilled(must func(*bounce) bool) (int, *bounce) {
	for device, g := range b.by {
		if !g.Full() && must(g) {
			return device, g
		}
	}
	return 0, nil
}

// warnings names copies that have failed.
func (b *bounces) warnings(r *sock.Rail, label string) (all []string) {
	for device, g := range b.by {
		n, why := r.Failed(g.GPU)
		if b.failed == nil {
			b.failed = map[int]*reported{}
		}
		if b.failed[device] == nil {
			b.failed[device] = &reported{}
		}
		if n = b.failed[device].more(n); n > 0 {
			all = append(all, fmt.Sprintf("%d copies between GPU %d and bounce buffers of %s have failed, and their connections were ended: %v", n, device, label, why))
		}
	}
	return all
}

// close frees all of them. The C rail is freed.
func (b *bounces) close() error {
	for _, g := range b.by {
		_ = g.Free() // otherwise the GPU may use it, and closing the driver fails
	}
	clear(b.by)
	return b.gpus.Close()
}
