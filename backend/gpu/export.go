package gpu

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Owns reports whether a share describes memory of this process.
func (d *Driver) Owns(s *Share) bool { return s.fields().owner == d.owner() }

// Unshared makes the share of memory that no other process can map, with the reason; 0: the reason is not known yet.
func Unshared(m *Mem, uuid [16]byte, why Why) (s Share) {
	c := s.fields()
	c.base, c.size, c.buffer, c.source = m.Base, m.Size, m.Buffer, uint32(why)
	if why != 0 {
		c.gpu = uuid
	}
	return s
}

// Share makes the description of memory for peers. Implements cuIpcGetMemHandle, or cuMemExportToShareableHandle for memory
// with a fabric handle. For other VMM memory it makes no driver call: see Pieces. The error says why the memory cannot be
// shared.
func (d *Driver) Share(m Mem) (Share, error) {
	var s Share
	if err := d.share(&m, s.fields()); err != nil {
		return Share{}, fmt.Errorf("GPU %d: %w", m.Device, err)
	}
	return s, nil
}

func (d *Driver) share(m *Mem, out *shared) error {
	if m.how == 0 {
		return unshareable(m, "share", Unknown)
	}
	of, err := d.info(m.Device)
	if err != nil {
		return err
	}
	switch m.how {
	case byIPC:
		err = d.ipcHandle(m, &out.handle)
	case byFabric:
		if err = d.Same(m.Base, m.Buffer); err == nil {
			err = d.exportFabricAt(m.Base, &out.handle)
		}
	default:
		err = d.Same(m.Base, m.Buffer)
	}
	if err != nil {
		return err
	}
	out.version, out.how = shareVersion, m.how
	out.base, out.size, out.buffer, out.pieces = m.Base, m.Size, m.Buffer, uint32(m.Pieces)
	out.owner, out.gpu = d.owner(), of.UUID
	return nil
}

// ipcHandle gets the handle of an allocation. The driver takes 3 us for it (H200), so regions of one allocation share it: its id is that of no other.
func (d *Driver) ipcHandle(m *Mem, out *[64]byte) error {
	if d.proofs.of(m.Base, m.Buffer, out) {
		return nil
	}
	changed, call, r := d.ipcOf(m.Device, m.Base, m.Buffer, out)
	if changed {
		return &Fault{Why: Changed, Call: "cuPointerGetAttribute"}
	}
	if err := d.failed(r, call); err != nil {
		return err
	}
	d.proofs.exported(m.Base, m.Buffer, *out)
	return nil
}

// unshareable makes the error for memory that cannot be shared. Its reason is m.NotShared, or what if that is nil.
func unshareable(m *Mem, call string, what Why) error {
	_ = errors.As(m.NotShared, &what)
	return &Fault{Why: what, Call: call}
}

// exportFabricAt exports the fabric handle of the memory at the begin of a mapping.
func (d *Driver) exportFabricAt(base uint64, out *[64]byte) error {
	handle, r := d.retain(base)
	if r != ok {
		return d.failed(r, "cuMemRetainAllocationHandle")
	}
	defer d.release(handle)
	return d.failed(d.exportFabric(handle, out), "cuMemExportToShareableHandle")
}

// Pieces exports n handles from first on as file descriptors, all or none. The caller closes them. Implements
// cuMemExportToShareableHandle.
func (d *Driver) Pieces(m Mem, first, n int) (fds []int32, sizes []uint64, err error) {
	if n <= 0 || first < 0 {
		return nil, nil, &Fault{Why: BadShare, Call: "pieces"}
	}
	if m.how != byFDs {
		return nil, nil, unshareable(&m, "pieces", BadShare)
	}
	if first > m.Pieces || n > m.Pieces-first {
		return nil, nil, &Fault{Why: BadShare, Call: "pieces"}
	}
	if err := d.Same(m.Base, m.Buffer); err != nil {
		return nil, nil, err
	}
	at := m.Base
	if first > 0 {
		base, before, _, _, are := d.handles(m.Base, m.Base+m.Size, m.Device, first)
		if at = base + before; !are || base != m.Base {
			return nil, nil, &Fault{Why: Changed, Call: "mappings"}
		}
	}
	for range n {
		base, size, is := d.handle(at)
		if !is || base != at || at-m.Base >= m.Size {
			err = &Fault{Why: Changed, Call: "mappings"}
		} else {
			var fd int
			if fd, err = d.piece(at); err == nil {
				fds, sizes = append(fds, int32(fd)), append(sizes, size)
			}
		}
		if err != nil {
			for _, fd := range fds {
				_ = unix.Close(int(fd))
			}
			return nil, nil, err
		}
		at = base + size
	}
	return fds, sizes, nil
}

// piece exports the handle that is mapped at an address.
func (d *Driver) piece(at uint64) (fd int, err error) {
	handle, r := d.retain(at)
	if r != ok {
		return -1, d.failed(r, "cuMemRetainAllocationHandle")
	}
	fd, r = d.exportFD(handle)
	d.release(handle)
	err = d.failed(r, "cuMemExportToShareableHandle")
	if r == osError { // the driver also returns this error if the descriptor table is full
		err.(*Fault).Why = NoFDs
	}
	return fd, err
}

// DMABuf makes a dmabuf of the whole pages around a range, of one or several handles. The caller closes it. offset is the
// position of addr in it.
//
// byPCIe is for devices whose path to the GPU does not pass a CPU. If GPU and CPU also have a link beside PCIe (C2C), two paths
// lead to the memory. A wrong choice shows only in failing transfers. A driver that knows one path returns a dmabuf for that
// path. Implements cuMemGetHandleForAddressRange. NoDMABuf: the GPU does not support dmabufs.
func (d *Driver) DMABuf(m Mem, addr, size uint64, byPCIe bool) (fd int, offset uint64, err error) {
	const call = "cuMemGetHandleForAddressRange"
	of, err := d.info(m.Device)
	if err != nil {
		return -1, 0, err
	}
	if !of.DMABuf {
		return -1, 0, &Fault{Why: NoDMABuf, Call: call}
	}
	// The pages may hold bytes beside the range. A device's region of the range excludes them.
	page := uint64(os.Getpagesize())
	from, end := addr&^(page-1), (addr+size+page-1)&^(page-1)
	err = d.within(m.Device, func() error {
		r := invalidValue
		if byPCIe {
			fd, r = d.rangeFD(from, end-from, rangePCIe)
		}
		if r == invalidValue || r == notSupported {
			fd, r = d.rangeFD(from, end-from, rangePlain)
		}
		return d.failed(r, call)
	})
	if err != nil {
		fd = -1
	}
	return fd, addr - from, err
}

// SyncMemops makes the application's synchronous copies and fills of an allocation complete before they return. Otherwise a
// copy within a GPU may be incomplete, and a device would read old data. VMM memory and pools are unchanged. Implements
// cuPointerSetAttribute.
func (d *Driver) SyncMemops(m Mem) {
	if _, err := d.info(m.Device); err != nil {
		return
	}
	_ = d.within(m.Device, func() error {
		d.syncMemops(m.Base)
		return nil
	})
}

// granule is the unit of sizes of VMM memory.
const granule = 2 << 20

// SharedVRAM allocates GPU memory that peers of this host map by its descriptors, and those of other hosts by its fabric handle. A driver that refuses such memory gives
// memory of cuMemAlloc. FreeVRAM frees both. Implements cuMemCreate, cuMemMap and cuMemSetAccess.
func (d *Driver) SharedVRAM(device int, size uint64) (addr uint64, err error) {
	if _, err := d.info(device); err != nil {
		return 0, err
	}
	size = (size + granule - 1) &^ (granule - 1)
	if addr, err = d.allocVMM(device, size); err != nil {
		return d.VRAM(device, size)
	}
	d.vmms.mu.Lock()
	defer d.vmms.mu.Unlock()
	if d.vmms.sizes == nil {
		d.vmms.sizes = map[uint64]uint64{}
	}
	d.vmms.sizes[addr] = size
	return addr, nil
}

func (d *Driver) allocVMM(device int, size uint64) (addr uint64, err error) {
	number, r := d.get(device)
	if r != ok {
		return 0, d.failed(r, "cuDeviceGet")
	}
	handle, r := uint64(0), notSupported
	if d.fabric(number) {
		handle, r = d.create(number, size, handleFD|handleFabric)
	}
	if r != ok { // also where the attribute says yes: without an IMEX channel or domain the driver says 800 or 801
		handle, r = d.create(number, size, handleFD)
	}
	if r != ok {
		return 0, d.failed(r, "cuMemCreate")
	}
	defer d.release(handle) // the mapping keeps the memory alive
	at, r := d.reserve(size)
	if r != ok {
		return 0, d.failed(r, "cuMemAddressReserve")
	}
	if r = d.mapAt(at, size, handle); r != ok {
		d.unreserve(at, size)
		return 0, d.failed(r, "cuMemMap")
	}
	if r = d.access(at, size, device); r != ok {
		d.unmapAt(at, size)
		d.unreserve(at, size)
		return 0, d.failed(r, "cuMemSetAccess")
	}
	return at, nil
}

// freeVMM frees memory of SharedVRAM. is: the memory at addr is such memory.
func (d *Driver) freeVMM(addr uint64) (is bool, err error) {
	d.vmms.mu.Lock()
	size := d.vmms.sizes[addr]
	delete(d.vmms.sizes, addr)
	d.vmms.mu.Unlock()
	if size == 0 {
		return false, nil
	}
	if r := d.unmapAt(addr, size); r != ok {
		return true, d.failed(r, "cuMemUnmap")
	}
	return true, d.failed(d.unreserve(addr, size), "cuMemAddressFree")
}

// FreeVRAM frees memory of VRAM or SharedVRAM. Implements cuMemFree, or cuMemUnmap and cuMemAddressFree.
func (d *Driver) FreeVRAM(device int, addr uint64) error {
	if is, err := d.freeVMM(addr); is {
		return err
	}
	return d.freeVRAM(device, addr)
}
