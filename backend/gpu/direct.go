package gpu

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/topo"
)

// NIC describes how a library's device registers GPU memory directly.
type NIC struct {
	Name string       // "verbs/mlx5_0"
	Sys  fs.FS        // "/sys"
	PCI  topo.PCIPath // PCI path of the device; nil: unknown
	// NoDMABuf is why the device takes no dmabuf; nil: the device may take one.
	NoDMABuf error
	// DMABuf registers length bytes of a dmabuf from offset on. Their registered addresses start at addr. The caller keeps the
	// file descriptor.
	DMABuf func(fd int, offset, length, addr uint64, device int, peers option.Rights) (provider.MR, error)
	// Address registers the range by its addresses. How is the name of that method in the log.
	Address func(addr, length uint64, device int, peers option.Rights) (provider.MR, error)
	How     string
}

// Direct registers GPU memory on one device. Its methods are safe for concurrent use.
type Direct struct {
	*LazyDriver
	dev NIC

	mu       sync.Mutex
	noDMABuf map[int]error          // per GPU: the error of the failed dmabuf registration, if it is permanent
	distance map[int]topo.Closeness // per GPU: the PCI distance
}

// NewDirect makes a Direct for a device. path is that of NewLazyDriver.
func NewDirect(path string, d NIC) *Direct {
	return &Direct{LazyDriver: NewLazyDriver(path, 0), dev: d, noDMABuf: map[int]error{}, distance: map[int]topo.Closeness{}}
}

// DirectRegion is a registration of GPU memory. It is a provider.GPUMemory.
type DirectRegion struct {
	provider.MR
	*Range
	how      string
	distance topo.Closeness
}

var _ provider.GPUMemory = (*DirectRegion)(nil)

// How implements provider.GPUMemory.
func (r *DirectRegion) How() string { return r.how }

// Distance implements provider.GPUMemory.
func (r *DirectRegion) Distance() topo.Closeness { return r.distance }

// Same implements provider.MR.
func (r *DirectRegion) Same() error { return r.Range.Same() }

// Flush implements provider.GPUMemory.
func (r *DirectRegion) Flush() (call, arg unsafe.Pointer) { return r.Driver.Flusher(r.Device) }

// Register registers GPU memory: as a dmabuf if driver, kernel and device support it, otherwise by address. A try finds out
// about dmabuf support; a permanent failure is remembered. The error wraps provider.ErrRegister and holds both reasons.
// ErrNoVRAM means that all memory of that GPU would be refused. Implements cuMemGetHandleForAddressRange.
func (d *Direct) Register(addr, length uint64, device int, peers option.Rights) (*DirectRegion, error) {
	m, err := d.Look(d.dev.Name, addr, length, device)
	if err != nil {
		return nil, err
	}
	r := &DirectRegion{Range: m, how: "dmabuf", distance: d.Distance(device, m.GPU.PCI)}
	m.Driver.SyncMemops(m.Mem)
	byBuf := d.refused(device)
	if byBuf == nil {
		if r.MR, byBuf = d.dmabuf(m, addr, length, peers, r.distance <= topo.SamePort); byBuf == nil {
			return r, nil
		}
		d.remember(device, byBuf)
	}
	r.how = d.dev.How
	if r.MR, err = d.dev.Address(addr, length, device, peers); err != nil {
		err = fmt.Errorf("as a dmabuf: %w; by address: %w%s", byBuf, err, barHint(byBuf))
		if lasting(byBuf) {
			err = fmt.Errorf("%w: %w", provider.ErrNoVRAM, err)
		}
		return nil, RangeError(d.dev.Name, addr, length, device, err)
	}
	return r, nil
}

// barHint adds the GPU's BAR1 window as a possible cause to a lack of resources.
func barHint(err error) string {
	if errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.ENOSPC) {
		return "; the GPU's window for other devices (BAR1) may be full: nvidia-smi -q -d MEMORY"
	}
	return ""
}

// dmabuf registers a range as a dmabuf under its own addresses. near: the path from the device to the GPU does not pass a CPU.
func (d *Direct) dmabuf(m *Range, addr, length uint64, peers option.Rights, near bool) (provider.MR, error) {
	if d.dev.NoDMABuf != nil {
		return nil, d.dev.NoDMABuf
	}
	mr, err := d.registerExport(m, addr, length, peers, near)
	if near && unsupported(err) { // the device may not take a mapping over PCIe that bypasses C2C
		mr, err = d.registerExport(m, addr, length, peers, false)
	}
	return mr, err
}

func (d *Direct) registerExport(m *Range, addr, length uint64, peers option.Rights, byPCIe bool) (provider.MR, error) {
	fd, offset, err := m.Driver.DMABuf(m.Mem, addr, length, byPCIe)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	return d.dev.DMABuf(fd, offset, length, addr, m.Device, peers)
}

// unsupported reports that an error means a missing feature. One of the errnos is the kernel-internal ENOTSUPP.
func unsupported(err error) bool {
	const enotsupp = syscall.Errno(524)
	for _, errno := range []syscall.Errno{syscall.EOPNOTSUPP, syscall.EPROTONOSUPPORT, syscall.ENOSYS, enotsupp} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// lasting reports that another try would fail the same way.
func lasting(err error) bool { return unsupported(err) || errors.Is(err, NoDMABuf) }

func (d *Direct) refused(device int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.noDMABuf[device]
}

func (d *Direct) remember(device int, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if lasting(why) {
		d.noDMABuf[device] = why
	}
}

// Distance returns the PCI distance between the device and a GPU. pci is the GPU's address.
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

// Peermem describes what a registration by address may lack: the kernel module that translates GPU addresses.
func Peermem(sys fs.FS) string {
	for _, module := range []string{"nvidia_peermem", "nv_peer_mem"} {
		if _, err := fs.Stat(sys, "module/"+module); err == nil {
			return fmt.Sprintf(" (the module %s is loaded; if the device's driver was loaded after it: rmmod %s; modprobe %s)", module, module, module)
		}
	}
	return " (the kernel's module nvidia_peermem is not loaded: modprobe nvidia_peermem, as root, on the host)"
}
