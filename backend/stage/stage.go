// Package stage copies between memory of GPUs and rings, which is memory that wires reach: pinned host memory, or a GPU's that peers can
// map. It knows nothing of peers and transfers; see docs/gpu.md, "Staging".
package stage

import (
	"errors"
	"fmt"
	"sync"

	"gorail/backend/gpu"
)

// ErrMemory says that memory is not what its owner takes it for.
var ErrMemory = errors.New("memory is not what its descriptor says")

// Copier is the driver with the streams that staging takes of it. Its methods are safe for concurrent use.
type Copier struct {
	path string

	mu    sync.Mutex
	drv   *gpu.Driver
	lanes map[lane]*stream
}

// lane names a stream: of one GPU, towards host memory or its own.
type lane struct{ device, peer int }

// ofOurs is the peer of lanes within a GPU: another than the GPU itself, whose lanes are provider/local's, and polled under its lock.
const ofOurs = -2

// New makes a Copier that loads the driver of that path when it is first needed. Nothing is done to any GPU before.
func New(path string) *Copier { return &Copier{path: path, lanes: map[lane]*stream{}} }

func (c *Copier) driver() (*gpu.Driver, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drv == nil {
		d, err := gpu.Open(c.path)
		if err != nil {
			return nil, err
		}
		c.drv = d
	}
	return c.drv, nil
}

// Check tells whether [addr, addr+size) is memory of that GPU, and retains its context: nil, an error that wraps ErrMemory, or the driver's.
// Implements cuPointerGetAttributes.
func (c *Copier) Check(addr, size uint64, device int) error {
	d, err := c.driver()
	if err != nil {
		return err
	}
	if device < 0 || device >= d.Devices() {
		return fmt.Errorf("%w: there is no GPU %d: this process sees %d", ErrMemory, device, d.Devices())
	}
	m, err := d.What(addr, size)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrMemory, err)
	case m.Kind == gpu.UnknownMemory || m.Kind == gpu.HostMemory || m.Kind == gpu.ManagedMemory:
		return fmt.Errorf("%w: it is %v", ErrMemory, m.Kind)
	case m.Device != device:
		return fmt.Errorf("%w: it is on GPU %d, the descriptor's device id says %d", ErrMemory, m.Device, device)
	}
	_, err = d.Device(device)
	return err
}

// Close gives the driver back. No copy may be under way and no Ring be left.
func (c *Copier) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drv == nil {
		return nil
	}
	for _, s := range c.lanes {
		s.close()
	}
	clear(c.lanes)
	err := c.drv.Close()
	c.drv = nil
	return err
}

// stream gives the stream of a GPU.
func (c *Copier) stream(l lane) (*stream, error) {
	d, err := c.driver()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.lanes[l]; s != nil {
		return s, nil
	}
	g, err := d.Lane(l.device, l.peer)
	if err != nil {
		return nil, fmt.Errorf("GPU %d: a stream: %w", l.device, err)
	}
	s := &stream{drv: d, lane: g}
	c.lanes[l] = s
	return s, nil
}
