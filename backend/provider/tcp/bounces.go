package tcp

import (
	"fmt"
	"sync/atomic"

	"gorail/backend/gpu"
	"gorail/backend/provider/tcp/bounce"
	"gorail/backend/provider/tcp/sock"
	"gorail/backend/provider/vram"
)

// mostBounced is the largest transfer of GPU memory that goes through the rail's own bounce buffers. Larger ones are staged: the
// 16 chunks of staging keep all shards busy.
const mostBounced = 1 << 20

// bounces are the bounce buffers of a rail, by GPU.
type bounces struct {
	gpus *vram.GPUs
	by   map[int]*bounce.GPU

	failed map[int]*reported
}

// streams numbers the streams of all rails: a stream takes one thread at a time, and each rail has its own lock.
var streams atomic.Int32

// firstStream is below the numbers of other streams of GPUs (backend/staging).
const firstStream = -16

// of returns the bounce buffers for a GPU, and makes them at first use.
func (b *bounces) of(r *sock.Rail, d *gpu.Driver, device int) (*bounce.GPU, error) {
	if g := b.by[device]; g != nil {
		return g, nil
	}
	g, err := bounce.New(d, device, firstStream-int(streams.Add(1)))
	if err != nil {
		return nil, err
	}
	if err := r.Use(g); err != nil {
		_ = g.Free() // nothing was posted
		return nil, err
	}
	if b.by == nil {
		b.by = map[int]*bounce.GPU{}
	}
	b.by[device] = g
	return g, nil
}

// warnings names copies that have failed.
func (b *bounces) warnings(r *sock.Rail, label string) (all []string) {
	for device, g := range b.by {
		n, why := r.Failed(g)
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
