package gpu

// #include "gpu_int.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// part is gr_gpu_part: an allocation, or a handle that is mapped.
type part struct{ base, end, buffer uint64 }

var _ = [1]byte{}[unsafe.Sizeof(part{})-C.sizeof_gr_gpu_part]

// Same checks that the memory at addr is still the allocation with that buffer id. The error is Changed. Implements
// cuPointerGetAttribute.
func (d *Driver) Same(addr, buffer uint64) error {
	now, r := d.attr(attrBuffer, addr)
	switch {
	case r.lost():
		return d.failed(r, "cuPointerGetAttribute")
	case r != ok || now != buffer:
		return &Fault{Why: Changed, Call: "cuPointerGetAttribute"}
	}
	return nil
}

// Unchanged checks that all of the memory is still what was mapped there when What described it. The error is Changed or Unmapped,
// and names the first address that differs. It is safe while the application maps and unmaps there. One call from Go, which would cost
// 0.3 us more for each handle: 0.1 us. Implements cuPointerGetAttributes.
func (d *Driver) Unchanged(m *Mem) error {
	var which C.size_t
	rc := C.gg_unchanged(d.c, (*C.gr_gpu_part)(unsafe.Pointer(unsafe.SliceData(m.parts))), C.size_t(len(m.parts)), &which)
	if rc == 0 {
		return nil
	}
	return fmt.Errorf("memory at %#x: %w", m.parts[which].base, &Fault{Why: Why(-rc), Call: "cuPointerGetAttributes"})
}

// PartsSize is the length in bytes of what PutParts writes.
func (m *Mem) PartsSize() uint64 {
	return uint64(unsafe.Sizeof(C.gr_gpu_parts{})) + uint64(len(m.parts))*uint64(unsafe.Sizeof(part{}))
}

// PutParts writes a gr_gpu_parts to memory that C owns.
func (m *Mem) PutParts(to unsafe.Pointer) {
	p := (*C.gr_gpu_parts)(to)
	p.n, p.device = C.uint32_t(len(m.parts)), C.int32_t(m.Device)
	copy(unsafe.Slice((*part)(unsafe.Add(to, unsafe.Sizeof(C.gr_gpu_parts{}))), len(m.parts)), m.parts)
}

// MappedOps checks that a GPU can read the application's memory of the local side of operations now, or of the remote side, or write to it. The
// error is Unmapped and names the first address that it cannot access, or where the driver has put memory of ours. Busy: the driver makes or frees
// memory of ours, so ask again; it takes milliseconds. Call it before a copy by a kernel: one that accesses unmapped memory ends the process's use of
// the GPU. Implements cuPointerGetAttributes.
func (d *Driver) MappedOps(device int, ops []Op, remote, write bool) error {
	need := C.uint32_t(C.GR_GPU_READS)
	if write {
		need = C.GR_GPU_WRITES
	}
	side := C.int(0)
	if remote {
		side = 1
	}
	var at C.uint64_t
	if rc := C.gg_mapped_ops(d.c, C.int(device), (*C.gr_op)(unsafe.Pointer(unsafe.SliceData(ops))), C.size_t(len(ops)), side, need, &at); rc != 0 {
		return fmt.Errorf("memory at %#x: %w", uint64(at), &Fault{Why: Why(-rc), Call: "cuPointerGetAttributes"})
	}
	return nil
}

// Ours reports that a range is memory of ours: a bounce buffer that is being registered.
func (d *Driver) Ours(addr, size uint64) bool {
	return C.gg_owns(d.c, C.uint64_t(addr), C.uint64_t(size)) != 0
}

// Identity is a number for what the application has mapped in a range: equal as long as the memory is the same. 0: not all of it is mapped, or
// the driver makes or frees memory of ours at this moment. It takes 0.1 us
// for 2 MiB, and is safe while the application maps and unmaps there. Implements cuPointerGetAttributes.
func (d *Driver) Identity(addr, size uint64) uint64 {
	return uint64(C.gg_identity(d.c, C.uint64_t(addr), C.uint64_t(size)))
}
