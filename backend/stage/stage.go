// Package stage copies between memory of GPUs and rings, which is memory that wires reach: pinned host memory, or a GPU's that peers can
// map. It knows nothing of peers and transfers; see docs/gpu.md, "Staging".
package stage

import (
	"fmt"
	"sync"

	"gorail/backend/provider/vram"
)

// Copier is the driver with the streams that staging takes of it. Its methods are safe for concurrent use.
type Copier struct {
	gpus   *vram.GPUs
	blocks int

	mu      sync.Mutex
	streams map[streamKey]*copyStream
}

// streamKey names a stream: of one GPU, towards host memory or its own.
type streamKey struct{ device, peer int }

// ofOurs is the peer of streams within a GPU: another than the GPU itself, whose streams are provider/shm's, and polled under its lock.
const ofOurs = -2

// New makes a Copier that loads the driver of that path when it is first needed. Nothing is done to any GPU before. blocks is how many the
// copy kernel may take, 0: its default.
func New(path string, blocks int) *Copier {
	return &Copier{gpus: vram.New(path, 0), blocks: blocks, streams: map[streamKey]*copyStream{}}
}

// Check tells whether [addr, addr+size) is memory of that GPU, and retains its context: nil, or the error of a registration, which wraps
// provider.ErrNotThere where the descriptor is wrong. Implements cuPointerGetAttributes.
func (c *Copier) Check(addr, size uint64, device int) error {
	_, err := c.gpus.Look("staging", addr, size, device)
	return err
}

// Close gives the driver back. No copy may be under way and no Ring be left.
func (c *Copier) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		s.close()
	}
	clear(c.streams)
	return c.gpus.Close()
}

// stream gives the stream of a GPU.
func (c *Copier) stream(l streamKey) (*copyStream, error) {
	d, err := c.gpus.Open()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.streams[l]; s != nil {
		return s, nil
	}
	g, err := d.Stream(l.device, l.peer)
	if err != nil {
		return nil, fmt.Errorf("GPU %d: a stream: %w", l.device, err)
	}
	s := &copyStream{drv: d, stream: g}
	c.streams[l] = s
	return s, nil
}
