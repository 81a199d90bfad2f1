package stage

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Host is the device number of rings in host memory.
const Host = -1

// Ring is local memory that copies of a Copier start or end in.
type Ring struct {
	c      *Copier
	device int    // GPU, or Host
	mem    []byte // of a Host ring
	addr   uint64
	size   uint64
	copies atomic.Int32 // that have not ended
}

// Ring allocates size bytes. GPU memory is VMM memory: peers of other containers map it by
// its descriptors (gpu.Driver.SharedVRAM). Host memory comes from mmap and cuMemHostRegister, in the
// context of GPU user.
func (c *Copier) Ring(device, user int, size uint64) (*Ring, error) {
	d, err := c.gpus.Open()
	if err != nil {
		return nil, err
	}
	r := &Ring{c: c, device: device, size: size}
	if device != Host {
		if r.addr, err = d.SharedVRAM(device, size); err != nil {
			return nil, fmt.Errorf("allocate %d bytes of GPU %d for staging: %w", size, device, err)
		}
		return r, nil
	}
	if _, err := d.Device(user); err != nil { // pinning requires a context
		return nil, err
	}
	if r.mem, err = syscall.Mmap(-1, 0, int(size), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON); err != nil {
		return nil, fmt.Errorf("allocate %d bytes of host memory for staging: %w", size, err)
	}
	_ = syscall.Madvise(r.mem, 14) // MADV_HUGEPAGE: fewer entries to pin
	at := unsafe.Pointer(unsafe.SliceData(r.mem))
	if err := d.Pin(at, size); err != nil {
		_ = syscall.Munmap(r.mem)
		return nil, fmt.Errorf("pin %d bytes for staging: %w", size, err)
	}
	r.addr = uint64(uintptr(at))
	return r, nil
}

// Addr is the address of the first byte.
func (r *Ring) Addr() uint64 { return r.addr }

// Size in bytes.
func (r *Ring) Size() uint64 { return r.size }

// Free frees the ring, which no rail may know any more. ErrUnfinished: a copy is in progress, and the ring stays allocated.
func (r *Ring) Free() error {
	if r.copies.Load() > 0 {
		return ErrUnfinished
	}
	d, err := r.c.gpus.Open()
	if err != nil {
		return err
	}
	if r.device != Host {
		return d.FreeVRAM(r.device, r.addr)
	}
	if err := d.Unpin(unsafe.Pointer(unsafe.SliceData(r.mem)), r.size); err != nil {
		return err
	}
	return syscall.Munmap(r.mem)
}
