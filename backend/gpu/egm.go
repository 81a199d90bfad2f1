package gpu

/*
#include <dlfcn.h>
#include <stdlib.h>

#include "cuda_abi.h"

// Whether an initialized driver of this process says that it knows host memory at the address. Loads and initializes nothing.
static int egm_host(const char *path, cu_ptr at)
{
    void *dl = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (!dl)
        return 0;
    cu_result (*find)(const char *, void **, int, uint64_t) = (cu_result (*)(const char *, void **, int, uint64_t))dlsym(dl, "cuGetProcAddress");
    cu_result (*attr)(void *, int, cu_ptr) = NULL;
    unsigned type = 0;
    int is = find && find("cuPointerGetAttribute", (void **)&attr, 4000, 0) == CU_OK && attr && attr(&type, CU_PTR_TYPE, at) == CU_OK && type == CU_TYPE_HOST;
    dlclose(dl);
    return is;
}
*/
import "C"

import "unsafe"

// Host memory that GPUs of other hosts can map: memory of cuMemCreate whose location is a NUMA node of the host, with fabric handles (EGM: Grace,
// NVLink-C2C).

// KnowsHost reports that the driver of this process knows host memory at the address: a first question for Host, which takes 1.6 us. It loads and
// initializes nothing: a process that does not use GPUs has no such memory. Implements cuPointerGetAttribute.
func KnowsHost(path string, addr uint64) bool {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	return C.egm_host(cpath, C.cu_ptr(addr)) != 0
}

// Host describes host memory with fabric handles. not: the range is other host memory. Device is the first of the GPUs that may read and write it; -1: none
// may. Implements cuPointerGetAttributes, cuMemRetainAllocationHandle and cuMemGetAccess.
func (d *Driver) Host(addr, size uint64, gpus map[[16]byte]bool) (m Mem, is bool) {
	p, r := d.pointer(addr)
	if r != ok || p.kind != typeHost || addr+size < addr {
		return m, false
	}
	handle, r := d.retain(addr)
	if r != ok { // pinned memory
		return m, false
	}
	d.release(handle)
	parts, types, are := d.parts(addr, addr+max(size, 1), p.device)
	if !are || types&handleFabric == 0 {
		return m, false
	}
	m = Mem{Kind: HostMemory, Device: -1, Base: parts[0].base, Buffer: parts[0].buffer, Pieces: len(parts), NotShared: Pinned, fabric: true, parts: parts}
	m.Size = parts[len(parts)-1].end - m.Base
	for i := range d.Devices() {
		number, r := d.get(i)
		uuid, s := d.uuid(number)
		if r == ok && s == ok && gpus[uuid] && d.reaches(parts, number) {
			m.Device = i
			return m, true
		}
	}
	return m, true
}

func (d *Driver) reaches(parts []part, device int) bool {
	for _, p := range parts {
		if !d.allowed(p.base, device) {
			return false
		}
	}
	return true
}

// HostRange is Host, with the GPU in use that may read and write the memory.
func (g *LazyDriver) HostRange(addr, length uint64, gpus map[[16]byte]bool) (m *Range, is bool, err error) {
	d, err := g.Open()
	if err != nil {
		return nil, false, err
	}
	m = &Range{Driver: d, GPU: &Device{}}
	if m.Mem, is = d.Host(addr, length, gpus); !is {
		return nil, false, nil
	}
	if m.Device >= 0 {
		m.GPU, err = d.info(m.Device)
	}
	return m, true, err
}
