package gpu

// #include "gpu_int.h"
import "C"

import "unsafe"

// DMABuf makes a dmabuf of whole pages round a range, of one handle or several; the caller closes it. offset is where addr is in it. byPCIe is
// for devices that reach the GPU without passing a processor: where GPU and processor have another link beside PCIe (C2C) there are two ways
// to the memory, and whoever registers the wrong one hears of it from failing transfers alone. A driver that knows one way gives
// that. Implements cuMemGetHandleForAddressRange. The error is NoDMABuf where the GPU has none.
func (d *Driver) DMABuf(m Mem, addr, size uint64, byPCIe bool) (fd int, offset uint64, err error) {
	var c, pcie C.int
	if byPCIe {
		pcie = 1
	}
	var off C.uint64_t
	var f C.gr_gpu_fault
	rc := C.gg_dmabuf(d.c, &m.c, C.uint64_t(addr), C.uint64_t(size), pcie, &c, &off, &f)
	return int(c), uint64(off), check(rc, &f)
}

// SyncMemops makes the application's synchronous copies and fills of an allocation end before they return; else a copy within a GPU may not
// have, and a device would read what was there before. VMM memory and pools are left as they are. Implements cuPointerSetAttribute.
func (d *Driver) SyncMemops(m Mem) { C.gg_sync_memops(d.c, &m.c) }

// Flush makes the GPU's work see what other devices have written to its memory; nothing where Device.Flush is false. Implements
// cuFlushGPUDirectRDMAWrites.
func (d *Driver) Flush(device int) error {
	var f C.gr_gpu_fault
	return check(C.gg_flush(d.c, C.int(device), &f), &f)
}

// Flusher is Flush for C: call(arg), for as long as the driver is open. nil: that GPU's work sees what other devices write by itself.
func (d *Driver) Flusher(device int) (call, arg unsafe.Pointer) {
	if arg = C.gg_flusher(d.c, C.int(device)); arg != nil {
		call = C.gg_flush_dev
	}
	return call, arg
}
