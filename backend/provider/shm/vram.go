package shm

/*
#include <stdlib.h>
#include "local.h"

static int lc_mapping(lc_rail *rail) { return atomic_load(&rail->mapper.opening) != 0; }
static void lc_set_gpu(lc_rail *rail, void *gpu) { atomic_store(&rail->gpu, (gr_gpu *)gpu); }
*/
import "C"

import (
	"errors"
	"fmt"
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/provider/vram"
)

// meet looks at a GPU, once.
func (r *rail) meet(m *vram.Memory) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known[m.Device] {
		return
	}
	if r.known == nil {
		r.known = map[int]bool{}
	}
	r.known[m.Device] = true
	if !m.GPU.Kernel {
		r.news = append(r.news, fmt.Sprintf("GPU %d (%s): its driver does not take the copy kernel (%s): copy engines serve, one operation after the other",
			m.Device, m.GPU.Name, m.GPU.NoKernel))
	}
}

func (r *rail) tell(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.news = append(r.news, line)
}

// News implements provider.Teller.
func (r *rail) News() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	news := r.news
	r.news = nil
	return news
}

// RegisterVRAM implements provider.VRAM: cuPointerGetAttributes, cuIpcGetMemHandle.
func (r *rail) RegisterVRAM(addr, length uint64, device int) (provider.MR, error) {
	fail := func(err error) (provider.MR, error) { return nil, vram.Refused(r.dev.Name, addr, length, device, err) }
	m, err := r.gpus.Look(r.dev.Name, addr, length, device)
	if err != nil {
		return nil, err
	}
	r.meet(&m)
	d := m.Driver
	C.lc_set_gpu(r.c, d.Core())
	share := C.gr_gpu_share{base: C.uint64_t(m.Base), size: C.uint64_t(m.Size), buffer: C.uint64_t(m.Buffer)}
	if m.NotShared == nil {
		s, err := d.Share(m.Mem)
		switch {
		case err == nil:
			share = *(*C.gr_gpu_share)(unsafe.Pointer(&s))
		case m.Fabric() && !errors.Is(err, gpu.Lost): // here it is used as any
			share.pad = C.uint32_t(gpu.NoFabric)
			share.gpu = *(*[16]C.uint8_t)(unsafe.Pointer(&m.GPU.UUID))
			r.tell(fmt.Sprintf("memory of GPU %d at %#x has a handle for NVLink between hosts alone, and the driver does not give it "+
				"(is there an IMEX channel?): no other process can map it: %v", device, addr, err))
		default:
			return fail(err)
		}
		if s.Pieces() > 0 {
			if err := r.feed(); err != nil {
				return fail(err)
			}
		}
	} else if why, ok := m.NotShared.(gpu.Why); ok { // peers hear that when they want it; here it is used as any
		share.pad = C.uint32_t(why)
		share.gpu = *(*[16]C.uint8_t)(unsafe.Pointer(&m.GPU.UUID))
	}
	v := (*C.lc_vram)(C.calloc(1, C.sizeof_lc_vram))
	if v == nil {
		return fail(errors.New("out of memory"))
	}
	v.device = C.int(device)
	mem := *(*C.gr_gpu_mem)(m.Core())
	var key C.uint64_t
	if rc := C.lc_mr_open(r.c, C.uint64_t(addr), C.uint64_t(length), &share, &mem, &key); rc != 0 {
		C.free(unsafe.Pointer(v))
		return nil, r.error(provider.ErrRegister, fmt.Sprintf("register (%d regions of GPUs at most)", C.LC_SHARES), rc)
	}
	return &region{rail: r, key: uint64(key), base: addr, vram: v, mem: m}, nil
}

// Same implements provider.Renewable: cuPointerGetAttribute of the buffer id.
func (m *region) Same() error {
	if m.vram == nil {
		return nil
	}
	return m.mem.Same()
}

// feed starts giving peers descriptors of VMM memory.
func (r *rail) feed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var step *C.char
	if rc := C.lc_feed_open(r.c, &step); rc != 0 {
		return r.error(provider.ErrRegister, C.GoString(step), rc)
	}
	return nil
}

// Mapping implements provider.Mapper.
func (r *rail) Mapping() bool { return C.lc_mapping(r.c) != 0 }

// Trouble implements provider.VRAM.
func (r *rail) Trouble() string {
	const room = 512
	text := (*C.char)(C.calloc(1, room))
	defer C.free(unsafe.Pointer(text))
	C.lc_trouble_text(r.c, text, room)
	return C.GoString(text)
}
