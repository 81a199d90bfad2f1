package vram

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/topo"
)

// Device is what a device of some library has to reach memory of GPUs by itself.
type Device struct {
	Name string       // "verbs/mlx5_0"
	Sys  fs.FS        // "/sys"
	PCI  topo.PCIPath // its own; nil: unknown
	// NoDMABuf is why it takes no dmabuf at all; nil: it may.
	NoDMABuf error
	// DMABuf registers length bytes from offset on of a dmabuf, under the addresses from addr on. The descriptor stays the caller's.
	DMABuf func(fd int, offset, length, addr uint64, device int) (provider.MR, error)
	// Address registers the range by its addresses; How is what the log calls that.
	Address func(addr, length uint64, device int) (provider.MR, error)
	How     string
}

// Direct is a device's use of GPUs. Its methods are safe for concurrent use.
type Direct struct {
	*GPUs
	dev Device

	mu       sync.Mutex
	no       map[int]error          // why memory of a GPU can't be registered as a dmabuf, found by trying
	distance map[int]topo.Closeness // of GPUs
}

// NewDirect makes one; path is New's.
func NewDirect(path string, d Device) *Direct {
	return &Direct{GPUs: New(path, 0), dev: d, no: map[int]error{}, distance: map[int]topo.Closeness{}}
}

// Region is a registration of memory of a GPU; it is a provider.GPUMemory.
type Region struct {
	provider.MR
	Memory
	how      string
	distance topo.Closeness
}

var _ provider.GPUMemory = (*Region)(nil)

// How implements provider.GPUMemory.
func (r *Region) How() string { return r.how }

// Distance implements provider.GPUMemory.
func (r *Region) Distance() topo.Closeness { return r.distance }

// Same implements provider.Renewable.
func (r *Region) Same() error { return r.Memory.Same() }

// Flush implements provider.GPUMemory.
func (r *Region) Flush() (call, arg unsafe.Pointer) { return r.Driver.Flusher(r.Device) }

// Register registers memory of a GPU: by a dmabuf where driver, kernel and device can, else by address. That the first is not to be had is found
// by trying, and remembered. The error wraps provider.ErrRegister and has both reasons; ErrNoVRAM where no other memory of that GPU would be
// taken either. Implements cuMemGetHandleForAddressRange.
func (d *Direct) Register(addr, length uint64, device int) (*Region, error) {
	m, err := d.Look(d.dev.Name, addr, length, device)
	if err != nil {
		return nil, err
	}
	r := &Region{Memory: m, how: "dmabuf", distance: d.Distance(device, m.GPU.PCI)}
	m.Driver.SyncMemops(m.Mem)
	byBuf := d.refused(device)
	if byBuf == nil {
		if r.MR, byBuf = d.dmabuf(m, addr, length, r.distance <= topo.SamePort); byBuf == nil {
			return r, nil
		}
		d.remember(device, byBuf)
	}
	r.how = d.dev.How
	if r.MR, err = d.dev.Address(addr, length, device); err != nil {
		err = fmt.Errorf("as a dmabuf: %w; by address: %w%s", byBuf, err, window(byBuf))
		if Lasting(byBuf) {
			err = fmt.Errorf("%w: %w", provider.ErrNoVRAM, err)
		}
		return nil, Refused(d.dev.Name, addr, length, device, err)
	}
	return r, nil
}

// window says what else may be short than the device's own.
func window(err error) string {
	if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOSPC) {
		return "; the GPU's window for other devices (BAR1) may be full: nvidia-smi -q -d MEMORY"
	}
	return ""
}

// dmabuf registers a range as a dmabuf under its own addresses. near: the device reaches the GPU without passing a processor.
func (d *Direct) dmabuf(m Memory, addr, length uint64, near bool) (provider.MR, error) {
	if d.dev.NoDMABuf != nil {
		return nil, d.dev.NoDMABuf
	}
	mr, err := d.exported(m, addr, length, near)
	if near && Unsupported(err) { // the device may not take what is mapped past C2C
		mr, err = d.exported(m, addr, length, false)
	}
	return mr, err
}

func (d *Direct) exported(m Memory, addr, length uint64, byPCIe bool) (provider.MR, error) {
	fd, offset, err := m.Driver.DMABuf(m.Mem, addr, length, byPCIe)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	return d.dev.DMABuf(fd, offset, length, addr, m.Device)
}

// Unsupported says whether an error is of what isn't there; ENOTSUPP of the kernel's own is among those errnos.
func Unsupported(err error) bool {
	const enotsupp = syscall.Errno(524)
	for _, errno := range []syscall.Errno{syscall.EOPNOTSUPP, syscall.EPROTONOSUPPORT, syscall.ENOSYS, enotsupp} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// Lasting says whether another try would end alike.
func Lasting(err error) bool { return Unsupported(err) || errors.Is(err, gpu.NoDMABuf) }

func (d *Direct) refused(device int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.no[device]
}

func (d *Direct) remember(device int, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if Lasting(why) {
		d.no[device] = why
	}
}

// Distance is how close device and GPU are on the PCI bus; pci is the GPU's address.
func (d *Direct) Distance(device int, pci string) topo.Closeness {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.distance[device]
	if !ok {
		at = topo.Between(d.dev.PCI, topo.PathOf(d.dev.Sys, pci))
		d.distance[device] = at
	}
	return at
}

// Peermem says what a registration by address may lack: the kernel's module that knows addresses of GPUs.
func Peermem(sys fs.FS) string {
	for _, module := range []string{"nvidia_peermem", "nv_peer_mem"} {
		if _, err := fs.Stat(sys, "module/"+module); err == nil {
			return fmt.Sprintf(" (the module %s is loaded; if the device's driver was loaded after it: rmmod %s; modprobe %s)", module, module, module)
		}
	}
	return " (the kernel's module nvidia_peermem is not loaded: modprobe nvidia_peermem, as root, on the host)"
}
