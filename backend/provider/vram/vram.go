// Package vram is shared by rails that register GPU memory. It asks the driver for the type of memory, and knows the locations
// of GPUs.
package vram

import (
	"errors"
	"fmt"
	"sync"

	"gorail/backend/gpu"
	"gorail/backend/provider"
)

// GPUs is a rail's use of the GPU driver, which is loaded at first use. Its methods are safe for concurrent use.
type GPUs struct {
	path string
	most int

	mu     sync.Mutex
	driver *gpu.Driver
}

// New makes a GPUs. path is the driver's library as dlopen takes it ("": gpu.DefaultPath). most is the number of GPUs that the
// rail knows; 0: all.
func New(path string, most int) *GPUs {
	if path == "" {
		path = gpu.DefaultPath
	}
	return &GPUs{path: path, most: most}
}

// Memory is a range on the GPU that its descriptor names.
type Memory struct {
	gpu.Mem
	Driver *gpu.Driver
	GPU    gpu.Device
}

// Look asks the driver about a range, and refuses a range that is not memory of that GPU. It retains the GPU's context at the
// first range. The error wraps provider.ErrRegister, and provider.ErrNotThere if the descriptor is wrong. Implements
// cuPointerGetAttributes.
func (g *GPUs) Look(rail string, addr, length uint64, device int) (Memory, error) {
	m, err := g.look(addr, length, device)
	if err != nil {
		err = Refused(rail, addr, length, device, err)
	}
	return m, err
}

// Refused wraps the error of a registration.
func Refused(rail string, addr, length uint64, device int, err error) error {
	return fmt.Errorf("%w: %s: memory of GPU %d at %#x + %d: %w", provider.ErrRegister, rail, device, addr, length, err)
}

func (g *GPUs) look(addr, length uint64, device int) (Memory, error) {
	if length == 0 || addr+length < addr {
		return Memory{}, errors.New("an empty range, or one past the end of the address space")
	}
	d, is, err := g.open(device)
	if err != nil {
		return Memory{}, err
	}
	m, err := d.What(addr, length)
	switch {
	case err != nil:
		return Memory{}, fmt.Errorf("%w: %w", provider.ErrNotThere, err)
	case m.Kind == gpu.UnknownMemory || m.Kind == gpu.HostMemory || m.Kind == gpu.ManagedMemory:
		return Memory{}, fmt.Errorf("%w: the memory is %v", provider.ErrNotThere, m.Kind)
	case m.Device != device:
		return Memory{}, fmt.Errorf("%w: the memory is on GPU %d, the descriptor's device id says %d", provider.ErrNotThere, m.Device, device)
	}
	return Memory{m, d, is}, nil
}

// Open loads the driver, which stays loaded until Close. It touches no GPU.
func (g *GPUs) Open() (*gpu.Driver, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.driver == nil {
		d, err := gpu.Open(g.path)
		if err != nil {
			return nil, err
		}
		g.driver = d
	}
	return g.driver, nil
}

func (g *GPUs) open(device int) (*gpu.Driver, gpu.Device, error) {
	d, err := g.Open()
	if err != nil {
		return nil, gpu.Device{}, err
	}
	seen := d.Devices()
	if g.most > 0 {
		seen = min(seen, g.most)
	}
	if device < 0 || device >= seen {
		return nil, gpu.Device{}, fmt.Errorf("there is no GPU %d: this process sees %d", device, d.Devices())
	}
	is, err := d.Device(device)
	return d, is, err
}

// Close closes the driver. All memory must be deregistered before.
func (g *GPUs) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.driver == nil {
		return nil
	}
	d := g.driver
	g.driver = nil
	return d.Close()
}

// Same returns nil while all of the memory is still what Look saw. Implements cuPointerGetAttribute of the buffer ids.
func (m *Memory) Same() error { return m.Driver.Unchanged(&m.Mem) }
