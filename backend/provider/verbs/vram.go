package verbs

/*
#include "verbs.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/provider/vram"
	"gorail/backend/topo"
)

// direct is how a rail reaches memory of GPUs by itself.
type direct struct {
	*vram.GPUs

	mu sync.Mutex
	no map[int]error          // why memory of a GPU can't be registered as a dmabuf, found by trying
	at map[int]topo.Closeness // of GPUs
}

func newDirect(path string) *direct {
	return &direct{GPUs: vram.New(path, 0), no: map[int]error{}, at: map[int]topo.Closeness{}}
}

var _ provider.VRAM = (*rail)(nil)

// RegisterVRAM implements provider.VRAM: by a dmabuf where driver, kernel and device can, else by address, which works where the kernel's
// module nvidia_peermem is loaded.
func (r *rail) RegisterVRAM(addr, length uint64, device int) (provider.MR, error) {
	name := r.dev.Fabric + "/" + r.dev.Name
	m, err := r.gpus.Look(name, addr, length, device)
	if err != nil {
		return nil, err
	}
	g := &gpuRegion{mem: m, distance: r.distance(device, m.GPU.PCI)}
	m.Driver.SyncMemops(m.Mem)
	byBuf := r.gpus.refused(device)
	if byBuf == nil {
		if g.region, byBuf = r.dmabuf(m, addr, length, g.distance <= topo.SamePort); byBuf == nil {
			g.how = "dmabuf"
			return g, nil
		}
		r.gpus.remember(device, byBuf)
	}
	var mr *C.struct_ibv_mr
	if rc := C.vb_mr_open(r.c, C.uint64_t(addr), C.uint64_t(length), 0, &mr); rc != 0 {
		err = fmt.Errorf("as a dmabuf: %w; by address: ibv_reg_mr: %w%s", byBuf, syscall.Errno(-rc), peermem(r.entry.sys))
		if lasting(byBuf) {
			err = fmt.Errorf("%w: %w", provider.ErrNoVRAM, err)
		}
		return nil, vram.Refused(name, addr, length, device, err)
	}
	g.region, g.how = &region{rail: r, c: mr, base: addr}, "nvidia_peermem"
	return g, nil
}

// Trouble implements provider.VRAM: what a device could not copy fails with its request.
func (r *rail) Trouble() string { return "" }

// dmabuf registers a range as a dmabuf under its own addresses. near: the device reaches the GPU without passing a processor.
func (r *rail) dmabuf(m vram.Memory, addr, length uint64, near bool) (*region, error) {
	if r.c.dmabuf == 0 {
		return nil, fmt.Errorf("ibv_reg_dmabuf_mr: %w (it wants Linux 5.12, rdma-core 34 and a device whose driver knows it)", syscall.EOPNOTSUPP)
	}
	mr, err := r.exported(m, addr, length, near)
	if near && unsupported(err) { // the device may not take what is mapped past C2C
		mr, err = r.exported(m, addr, length, false)
	}
	return mr, err
}

func (r *rail) exported(m vram.Memory, addr, length uint64, byPCIe bool) (*region, error) {
	fd, offset, err := m.Driver.DMABuf(m.Mem, addr, length, byPCIe)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	mr, err := r.RegisterDMABuf(fd, offset, length, addr)
	if err != nil {
		return nil, err
	}
	return mr.(*region), nil
}

// unsupported: the errnos of what isn't there, ENOTSUPP of the kernel's own among them.
func unsupported(err error) bool {
	const enotsupp = syscall.Errno(524)
	for _, errno := range []syscall.Errno{syscall.EOPNOTSUPP, syscall.EPROTONOSUPPORT, syscall.ENOSYS, enotsupp} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// lasting: another try would end alike.
func lasting(err error) bool { return unsupported(err) || errors.Is(err, gpu.NoDMABuf) }

func (d *direct) refused(device int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.no[device]
}

func (d *direct) remember(device int, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if lasting(why) {
		d.no[device] = why
	}
}

// distance of this rail's device and a GPU, by PCI address.
func (r *rail) distance(device int, pci string) topo.Closeness {
	d := r.gpus
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.at[device]
	if !ok {
		at = topo.Between(topo.RDMAPath(r.entry.sys, "infiniband", r.entry.port.device), topo.PathOf(r.entry.sys, pci))
		d.at[device] = at
	}
	return at
}

// peermem says what a refused registration by address lacks.
func peermem(sys fs.FS) string {
	for _, module := range []string{"nvidia_peermem", "nv_peer_mem"} {
		if _, err := fs.Stat(sys, "module/"+module); err == nil {
			return fmt.Sprintf(" (the module %s is loaded; if the device's driver was loaded after it: rmmod %s; modprobe %s)", module, module, module)
		}
	}
	return " (the kernel's module nvidia_peermem is not loaded: modprobe nvidia_peermem, as root, on the host)"
}

// gpuRegion implements provider.GPUMemory.
type gpuRegion struct {
	*region
	mem      vram.Memory
	how      string
	distance topo.Closeness
}

var _ provider.GPUMemory = (*gpuRegion)(nil)

// Desc tells requests that the processor can't read the memory.
func (g *gpuRegion) Desc() unsafe.Pointer { return unsafe.Add(g.region.Desc(), C.VB_GPU) }

func (g *gpuRegion) How() string              { return g.how }
func (g *gpuRegion) Distance() topo.Closeness { return g.distance }
func (g *gpuRegion) Same() error              { return g.mem.Same() }
func (g *gpuRegion) Flush() func() error      { return g.mem.Flush() }
