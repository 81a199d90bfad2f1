package gpu

import "sync"

// granule is the unit of sizes of VMM memory.
const granule = 2 << 20

// vmms has the VMM memory that we have allocated: sizes by address.
type vmms struct {
	mu    sync.Mutex
	sizes map[uint64]uint64
}

// SharedVRAM allocates GPU memory that peers of this host map by its descriptors. A driver that refuses such memory gives
// memory of cuMemAlloc. FreeVRAM frees both. Implements cuMemCreate, cuMemMap and cuMemSetAccess.
func (d *Driver) SharedVRAM(device int, size uint64) (addr uint64, err error) {
	if _, err := d.device(device); err != nil {
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
	handle, r := d.create(device, size)
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
