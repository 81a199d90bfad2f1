package cuda

// #include <stdlib.h>
// #include "app.h"
import "C"

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// App is an application with memory on GPUs. Its methods fail the test when the driver returns an error.
type App struct {
	t testing.TB
	c *C.app
}

// Kind is a kind of memory that an App allocates.
type Kind int

// Kinds of memory for Alloc and Free. VMM memory has methods of its own.
const (
	Device  Kind = C.APP_ALLOC
	Pool    Kind = C.APP_POOL
	Managed Kind = C.APP_MANAGED
	Host    Kind = C.APP_HOST
)

// NewApp loads the driver at path. The test must free its memory before the end; contexts are released there.
func NewApp(t testing.TB, path string) *App {
	t.Helper()
	const room = 512
	reason := (*C.char)(C.calloc(1, room))
	defer C.free(unsafe.Pointer(reason))
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	c := C.app_open(cpath, reason, room)
	require.NotNil(t, c, C.GoString(reason))
	a := &App{t, c}
	t.Cleanup(func() { C.app_close(c) })
	return a
}

// Alloc allocates size bytes. The caller frees them with Free.
func (a *App) Alloc(device int, kind Kind, size uint64) uint64 {
	a.t.Helper()
	var at C.cu_ptr
	require.Zero(a.t, C.app_alloc(a.c, C.int(device), C.int(kind), C.size_t(size), &at), "allocate %d bytes", size)
	return uint64(at)
}

// Free frees memory that Alloc returned.
func (a *App) Free(device int, kind Kind, at uint64) {
	a.t.Helper()
	require.Zero(a.t, C.app_free(a.c, C.int(device), C.int(kind), C.cu_ptr(at)))
}

// VMM allocates n handles of size bytes each and maps them at consecutive addresses. The caller frees them with FreeVMM.
func (a *App) VMM(device, n int, size uint64, shareable bool) uint64 {
	a.t.Helper()
	var at C.cu_ptr
	types := C.int(0)
	if shareable {
		types = C.CU_HANDLE_FD
	}
	require.Zero(a.t, C.app_vmm(a.c, C.int(device), C.int(n), C.size_t(size), types, &at))
	return uint64(at)
}

// FabricVMM is VMM with handles of type CU_HANDLE_FABRIC: they can be shared only over NVLink between hosts.
func (a *App) FabricVMM(device, n int, size uint64) uint64 {
	a.t.Helper()
	var at C.cu_ptr
	require.Zero(a.t, C.app_vmm(a.c, C.int(device), C.int(n), C.size_t(size), C.CU_HANDLE_FABRIC, &at))
	return uint64(at)
}

// HostVMM is VMM with memory of the host (EGM), with or without handles of type CU_HANDLE_FABRIC. The processor reaches it at the same addresses.
func (a *App) HostVMM(device, n int, size uint64, fabric bool) uint64 {
	a.t.Helper()
	var at C.cu_ptr
	types := C.int(C.APP_OF_HOST)
	if fabric {
		types |= C.CU_HANDLE_FABRIC
	}
	require.Zero(a.t, C.app_vmm(a.c, C.int(device), C.int(n), C.size_t(size), types, &at))
	return uint64(at)
}

// FreeVMM unmaps and frees memory that VMM or FabricVMM returned.
func (a *App) FreeVMM(device, n int, size, at uint64) {
	a.t.Helper()
	require.Zero(a.t, C.app_vmm_free(a.c, C.int(device), C.int(n), C.size_t(size), C.cu_ptr(at)))
}

// UnmapVMM unmaps the handles of VMM memory. The addresses stay reserved.
func (a *App) UnmapVMM(device, n int, size, at uint64) {
	a.t.Helper()
	require.Zero(a.t, C.app_vmm_unmap(a.c, C.int(device), C.int(n), C.size_t(size), C.cu_ptr(at)))
}

// MapVMM maps n new handles, which peers can map, at addresses that UnmapVMM has left.
func (a *App) MapVMM(device, n int, size, at uint64) {
	a.t.Helper()
	require.Zero(a.t, C.app_vmm_map(a.c, C.int(device), C.int(n), C.size_t(size), C.CU_HANDLE_FD, C.cu_ptr(at)))
}

// MapFabricVMM is MapVMM with handles as those of FabricVMM.
func (a *App) MapFabricVMM(device, n int, size, at uint64) {
	a.t.Helper()
	require.Zero(a.t, C.app_vmm_map(a.c, C.int(device), C.int(n), C.size_t(size), C.CU_HANDLE_FABRIC, C.cu_ptr(at)))
}

// MapHostVMM is MapVMM with memory as that of HostVMM.
func (a *App) MapHostVMM(device, n int, size, at uint64) {
	a.t.Helper()
	require.Zero(a.t, C.app_vmm_map(a.c, C.int(device), C.int(n), C.size_t(size), C.APP_OF_HOST|C.CU_HANDLE_FABRIC, C.cu_ptr(at)))
}

// ProtectVMM lets the GPU only read VMM memory.
func (a *App) ProtectVMM(device int, size, at uint64) {
	a.t.Helper()
	require.Zero(a.t, C.app_vmm_protect(a.c, C.int(device), C.size_t(size), C.cu_ptr(at)))
}

// Left returns the free memory of a GPU, in bytes. The imitation counts what all processes of this pid namespace hold, but pods.
func (a *App) Left(device int) uint64 {
	a.t.Helper()
	var left C.size_t
	require.Zero(a.t, C.app_left(a.c, C.int(device), &left))
	return uint64(left)
}

// Write copies b to GPU memory. Implements cuMemcpyHtoD.
func (a *App) Write(device int, at uint64, b []byte) {
	a.t.Helper()
	require.Zero(a.t, C.app_write(a.c, C.int(device), C.cu_ptr(at), unsafe.Pointer(unsafe.SliceData(b)), C.size_t(len(b))))
}

// Read returns size bytes of GPU memory. Implements cuMemcpyDtoH.
func (a *App) Read(device int, at, size uint64) []byte {
	a.t.Helper()
	b := make([]byte, size)
	require.Zero(a.t, C.app_read(a.c, C.int(device), unsafe.Pointer(unsafe.SliceData(b)), C.cu_ptr(at), C.size_t(size)))
	return b
}

// HasContext reports whether this thread has a current context.
func (a *App) HasContext() bool {
	a.t.Helper()
	n := C.app_has_context(a.c)
	require.GreaterOrEqual(a.t, int(n), 0)
	return n == 1
}

// Enter makes the GPU's primary context current on this thread. Leave undoes that.
func (a *App) Enter(device int) { require.Zero(a.t, C.app_enter(a.c, C.int(device))) }

// Leave pops the context that Enter pushed.
func (a *App) Leave() { require.Zero(a.t, C.app_leave(a.c)) }

// Mistakes for App.Wrong.
const (
	NoContext       = C.WRONG_NO_CONTEXT
	VMMSize         = C.WRONG_VMM_SIZE
	VMMExport       = C.WRONG_VMM_EXPORT
	VMMIPC          = C.WRONG_VMM_IPC
	OwnIPC          = C.WRONG_OWN_IPC
	DoubleFree      = C.WRONG_DOUBLE_FREE
	RegisteredTwice = C.WRONG_REGISTERED_TWICE
	FreeMapped      = C.WRONG_FREE_MAPPED
	NewPTX          = C.WRONG_PTX
	StreamFlags     = C.WRONG_STREAM
)

// Wrong makes a mistake and returns the driver's CUresult. A negative value means that a call before the mistake failed.
func (a *App) Wrong(mistake int) int { return int(C.app_wrong(a.c, C.int(mistake))) }
