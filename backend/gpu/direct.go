package gpu

import "os"

// DMABuf makes a dmabuf of whole pages round a range, of one handle or several; the caller closes it. offset is where addr is in it. byPCIe is
// for devices that reach the GPU without passing a processor: where GPU and processor have another link beside PCIe (C2C) there are two ways
// to the memory, and whoever registers the wrong one hears of it from failing transfers alone. A driver that knows one way gives
// that. Implements cuMemGetHandleForAddressRange. The error is NoDMABuf where the GPU has none.
func (d *Driver) DMABuf(m Mem, addr, size uint64, byPCIe bool) (fd int, offset uint64, err error) {
	const call = "cuMemGetHandleForAddressRange"
	of, err := d.device(m.Device)
	if err != nil {
		return -1, 0, err
	}
	if !of.DMABuf {
		return -1, 0, &Fault{Why: NoDMABuf, Call: call}
	}
	// What lies beside the range in its pages is not in the region that a device makes of it.
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

// SyncMemops makes the application's synchronous copies and fills of an allocation end before they return; else a copy within a GPU may not
// have, and a device would read what was there before. VMM memory and pools are left as they are. Implements cuPointerSetAttribute.
func (d *Driver) SyncMemops(m Mem) {
	if _, err := d.device(m.Device); err != nil {
		return
	}
	_ = d.within(m.Device, func() error {
		d.syncMemops(m.Base)
		return nil
	})
}
