package staging

// Copies between GPU memory and rings. A ring is memory that rails reach: pinned host memory, or GPU memory that
// peers can map. Package stage has no peers or transfers; see docs/gpu.md, "Staging".

import (
	"fmt"
	"sync"

	"gorail/backend/gpu"
	"gorail/backend/provider/vram"
	"gorail/backend/region"
	"gorail/backend/transfer"
)

// Copier holds the driver and the streams of staging. Its methods are safe for concurrent use.
type Copier struct {
	gpus *vram.GPUs
	how  gpu.How

	mu      sync.Mutex
	streams map[streamKey]*copyStream
}

// streamKey identifies a stream: of one GPU, to host memory or to the same GPU.
type streamKey struct{ device, peer int }

// ownStream is the peer number of streams within a GPU. It differs from the GPU's own number: provider/shm uses that one and
// polls it under its lock.
const ownStream = -2

// New makes a Copier. It loads the driver at path at first use and touches no GPU before. how sets how
// it copies.
func New(path string, how gpu.How) *Copier {
	return &Copier{gpus: vram.New(path, 0), how: how, streams: map[streamKey]*copyStream{}}
}

// Check checks that [addr, addr+size) is memory of that GPU, and retains the GPU's context. The error is that of a
// registration. It wraps provider.ErrNotThere if the descriptor is wrong. Implements cuPointerGetAttributes.
func (c *Copier) Check(addr, size uint64, device int) error {
	_, err := c.gpus.Look("staging", addr, size, device)
	return err
}

// Identity is a number for what is mapped in a range of GPU memory; 0: not all of it is. See gpu.Driver.Identity.
func (c *Copier) Identity(addr, size uint64) uint64 {
	d, err := c.gpus.Open()
	if err != nil {
		return 0
	}
	return d.Identity(addr, size)
}

// Registering lets the driver be asked once about a range until end is called; see gpu.Driver.Registering.
func (c *Copier) Registering(addr, size uint64) (end func()) {
	d, err := c.gpus.Open()
	if err != nil { // Check gives the error
		return func() {}
	}
	return d.Registering(addr, size)
}

// Driver is what registrations ask the driver.
func (c *Copier) Driver() region.GPU {
	return region.GPU{Registering: c.Registering, Check: c.Check, Identity: c.Identity, Pin: c.Pin, Unpin: c.Unpin}
}

// Close closes the driver. No copy may be in progress, and all Rings must be freed.
func (c *Copier) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.streams {
		s.close()
	}
	clear(c.streams)
	return c.gpus.Close()
}

// stream returns the stream of a GPU, and makes it at first use.
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
		return nil, fmt.Errorf("GPU %d: create a stream: %w", l.device, err)
	}
	s := &copyStream{drv: d, stream: g}
	c.streams[l] = s
	return s, nil
}

// A copy between GPU and host memory of the same agent needs no ring. The first such transfer pins the host memory, and the GPU
// copies once.

// within moves a group of a session with ourselves.
func (s *run) within(g *group) error {
	device := g.LocalDev
	if g.LocalMem != region.VRAM {
		device = g.RemoteDev
	}
	own, err := s.own(g)
	if err != nil {
		return err
	}
	return s.copying(own, func() error {
		for _, r := range own {
			if r.Mem == region.VRAM {
				continue
			}
			if err := s.side.Regions.Pin(r); err != nil {
				return err
			}
		}
		return s.side.Copier.Within(int(device), g.ops, s.t.Op() == transfer.Write, g.LocalMem != region.VRAM, s.ends())
	})
}

// own are the registrations of the group's memory on both sides, each once. On the remote side the transfer has regions of the session.
func (s *run) own(g *group) (list []*region.Region, err error) {
	seen := map[*region.Region]bool{}
	for i := range g.ops {
		for _, r := range []*region.Region{s.regions[g.ops[i].LRegion], s.regions[g.ops[i].RRegion]} {
			if seen[r] {
				continue
			}
			seen[r] = true
			own := s.side.Regions.Own(r)
			if own == nil {
				return nil, fmt.Errorf("memory %#x+%d was deregistered", r.Addr, r.Len)
			}
			list = append(list, own)
		}
	}
	return list, nil
}
