package sock

/*
#include <stdlib.h>
#include "sock.h"

static int bulk_opening(tcp_rail *rail) { return atomic_load(&rail->bulk->opening) != 0; }
static void bulk_abandon(tcp_rail *rail) { atomic_fetch_sub(&rail->bulk->opening, 1); }
static void bulk_told(tcp_rail *rail) { atomic_store(&rail->bulk->changed, 0); }
*/
import "C"

import (
	"unsafe"

	"gorail/backend/gpu"
	"gorail/backend/option"
	"gorail/backend/provider/internal/clib"
)

// MaxGPUs is the number of GPUs of this process that a rail of NVLink takes.
const MaxGPUs = C.TCP_GPUS

// Bulk makes the rail copy memory of GPUs by jobs of GPUs, before the first connection. doorbell is an eventfd, signaled with each task.
func (r *Rail) Bulk(doorbell int, how gpu.How) error {
	return errno(C.tcp_bulk_new(r.c, C.int(doorbell), C.int(how)))
}

// UseDriver sets the driver of the GPUs. Each registration of a GPU region calls it, with the same driver.
func (r *Rail) UseDriver(d *gpu.Driver) { C.tcp_bulk_use(r.c, (*C.gr_gpu)(d.Core())) }

// NewVRAM makes the descriptor of a region of that memory. C owns it.
func NewVRAM(m *gpu.Mem) (unsafe.Pointer, error) {
	v, err := clib.Zeroed("tcp_vram", 1, C.sizeof_tcp_vram+uintptr(m.PartsSize()))
	if err != nil {
		return nil, err
	}
	parts := unsafe.Add(v, C.sizeof_tcp_vram)
	m.PutParts(parts)
	(*C.tcp_vram)(v).device, (*C.tcp_vram)(v).parts = C.int(m.Device), (*C.gr_gpu_parts)(parts)
	return v, nil
}

// FreeVRAM frees a descriptor that was never used.
func FreeVRAM(desc unsafe.Pointer) { C.free(desc) }

// RegisterVRAM enters memory of a GPU into the table.
func (r *Rail) RegisterVRAM(addr, length, key uint64, peers option.Rights, desc unsafe.Pointer) (number uint32, err error) {
	var n C.uint32_t
	err = errno(C.tcp_register_vram(r.c, C.uint64_t(addr), C.uint64_t(length), C.uint64_t(key), rights(peers), (*C.tcp_vram)(desc), &n))
	return uint32(n), err
}

// RetireVRAM frees a descriptor when no job uses it. It is in no entry.
func (r *Rail) RetireVRAM(desc unsafe.Pointer) { C.tcp_vram_retire(r.c, (*C.tcp_vram)(desc)) }

// Task is a task of the mapper.
type Task struct {
	What int
	In   Import // of TaskMap and TaskUnmap
	c    *C.tcp_task
}

// Kinds of tasks. TaskChanged: memory of ours is not what was registered.
const (
	TaskMap     = C.TCP_MAP
	TaskUnmap   = C.TCP_UNMAP
	TaskPair    = C.TCP_PAIR
	TaskChanged = C.TCP_CHANGED
)

// NextTask implements tcp_task_take.
func (r *Rail) NextTask() (Task, bool) {
	c := C.tcp_task_take(r.c)
	if c == nil {
		return Task{}, false
	}
	t := Task{What: int(c.what), c: c}
	switch t.What {
	case TaskMap:
		t.In = Import{(*C.tcp_import)(unsafe.Pointer(c))}
	case TaskUnmap:
		t.In = Import{(*C.tcp_import)(unsafe.Add(unsafe.Pointer(c), -int(unsafe.Offsetof(C.tcp_import{}.unmap))))}
	}
	return t, true
}

// TasksAsked is the number of tasks so far. Told lets the next change add a task again.
func (r *Rail) TasksAsked() uint64 { return uint64(C.tcp_tasks_asked(r.c)) }
func (r *Rail) Told()              { C.bulk_told(r.c) }

// MakePair implements tcp_pair_make.
func (r *Rail) MakePair(t Task) { C.tcp_pair_make(r.c, t.c) }

// Import is a region of a peer that is mapped for one of our GPUs. C owns it until Free.
type Import struct{ c *C.tcp_import }

// ImportInfo is what the mapper needs to know.
type ImportInfo struct {
	Conn                  uint64 // Conn.Number
	Key, Base, Addr, Size uint64
	Device                int
}

// Info copies the description of an import.
func (i Import) Info() ImportInfo {
	return ImportInfo{uint64(i.c.conn), uint64(i.c.key), uint64(i.c.base), uint64(i.c.addr), uint64(i.c.len), int(i.c.device)}
}

// Free frees an import after its TaskUnmap.
func (i Import) Free() { C.free(unsafe.Pointer(i.c)) }

// Mapped ends a TaskMap: the memory is delta behind the peer's addresses, or why is not 0. One call at a time. False: it cannot be used.
func (r *Rail) Mapped(i Import, why gpu.Why, delta uint64) bool {
	return C.tcp_import_done(r.c, i.c, C.int(why), C.uint64_t(delta)) == 0
}

// Abandon counts an import that Mapped is not called for. Mapping reports that one is under way.
func (r *Rail) Abandon()      { C.bulk_abandon(r.c) }
func (r *Rail) Mapping() bool { return C.bulk_opening(r.c) != 0 }

// JobsKept is the number of jobs' connections that are closed, and whose copies GPUs have not ended.
func (r *Rail) JobsKept() int { return int(C.tcp_jobs_kept(r.c)) }

// LastError is the last reason why GPU memory could not be reached.
func (r *Rail) LastError() string {
	var text [512]C.char
	C.tcp_last_error(r.c, &text[0], C.size_t(len(text)))
	return C.GoString(&text[0])
}

// SetLastError sets it.
func (r *Rail) SetLastError(text string) {
	c := C.CString(text)
	defer C.free(unsafe.Pointer(c))
	C.tcp_set_last_error(r.c, c)
}

// Number is the connection's number.
func (c *Conn) Number() uint64 { return uint64(C.tcp_conn_number(c.c)) }

// Copying is the number of operations that wait for a GPU of ours alone.
func (c *Conn) Copying() int { return int(C.tcp_conn_copying(c.c)) }

// ForgetImport drops a region of the peer. TaskUnmap follows when no job uses it.
func (c *Conn) ForgetImport(region uint32) { C.tcp_import_forget(c.c, C.uint32_t(region)) }
