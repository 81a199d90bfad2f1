package gpu

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"gorail/backend/provider"
)

// LazyDriver is a rail's use of the GPU driver, which is loaded at first use. Its methods are safe for concurrent use.
type LazyDriver struct {
	path string
	most int

	mu     sync.Mutex             // for the changes of the others
	driver atomic.Pointer[Driver] // nil: it is not loaded
	closed bool
}

// NewLazyDriver makes a LazyDriver. path is the driver's library as dlopen takes it ("": DefaultPath). most is the number of GPUs that the
// rail knows; 0: all.
func NewLazyDriver(path string, most int) *LazyDriver {
	if path == "" {
		path = DefaultPath
	}
	return &LazyDriver{path: path, most: most}
}

// Range is a range on the GPU that its descriptor names. Several registrations may share it: nobody changes it.
type Range struct {
	Mem
	Driver *Driver
	GPU    *Device
}

// Look is Ask with an error that wraps provider.ErrRegister.
func (g *LazyDriver) Look(rail string, addr, length uint64, device int) (*Range, error) {
	m, err := g.Ask(addr, length, device)
	if err != nil {
		err = RangeError(rail, addr, length, device, err)
	}
	return m, err
}

// RangeError wraps the error of a registration.
func RangeError(rail string, addr, length uint64, device int, err error) error {
	return fmt.Errorf("%w: %s: memory of GPU %d at %#x + %d: %w", provider.ErrRegister, rail, device, addr, length, err)
}

// Ask asks the driver about a range, and refuses a range that is not memory of that GPU. It retains the GPU's context at the
// first range. The error wraps provider.ErrNotThere if the descriptor is wrong. Implements cuPointerGetAttributes.
func (g *LazyDriver) Ask(addr, length uint64, device int) (*Range, error) {
	if length == 0 || addr+length < addr {
		return nil, errors.New("an empty range, or one past the end of the address space")
	}
	d, is, err := g.open(device)
	if err != nil {
		return nil, err
	}
	m, err := d.what(addr, length)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", provider.ErrNotThere, unknownRange(addr, length, err))
	case m.Kind == UnknownMemory || m.Kind == HostMemory || m.Kind == ManagedMemory:
		return nil, fmt.Errorf("%w: the memory is %v", provider.ErrNotThere, m.Kind)
	case m.Device != device:
		return nil, fmt.Errorf("%w: the memory is on GPU %d, the descriptor's device id says %d", provider.ErrNotThere, m.Device, device)
	}
	if m.GPU == nil { // the first memory of the GPU
		m = &Range{m.Mem, d, is}
	}
	return m, nil
}

// Open loads the driver, which stays loaded until Close, and is not loaded after it. It touches no GPU.
func (g *LazyDriver) Open() (*Driver, error) {
	if d := g.driver.Load(); d != nil {
		return d, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if d := g.driver.Load(); d != nil {
		return d, nil
	}
	if g.closed { // nobody would close it again
		return nil, errors.New("the rail is closed")
	}
	d, err := Open(g.path)
	if err != nil {
		return nil, err
	}
	g.driver.Store(d)
	return d, nil
}

func (g *LazyDriver) open(device int) (*Driver, *Device, error) {
	d, err := g.Open()
	if err != nil {
		return nil, nil, err
	}
	seen := d.Devices()
	if g.most > 0 {
		seen = min(seen, g.most)
	}
	if device < 0 || device >= seen {
		return nil, nil, fmt.Errorf("there is no GPU %d: this process sees %d", device, d.Devices())
	}
	is, err := d.info(device)
	if err != nil {
		return d, nil, err
	}
	d.warmOnce(device)
	return d, is, nil
}

// Close closes the driver. All memory must be deregistered before.
func (g *LazyDriver) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	d := g.driver.Swap(nil)
	if d == nil {
		return nil
	}
	return d.Close()
}

// Same returns nil while all of the memory is still what Look saw. Implements cuPointerGetAttribute of the buffer ids.
func (m *Range) Same() error { return m.Driver.Unchanged(&m.Mem) }
