// Package cuda is the benchmark's memory of GPUs, and copies from and to the host. It loads the driver at run time, so that the tool builds
// and runs without one.
//
// A Driver and its memory are safe for concurrent use, except that Free ends the use. Errors name the driver's call and its result.
package cuda

import (
	"cmp"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"sync"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"
)

// EnvPath names the driver's library, as it does for the plugin.
const EnvPath = "GORAIL_CUDA_PATH"

// calls are the driver's calls, each in the form that a version of the driver introduced: a newer driver then gives the form that we know.
type calls struct {
	Init           func(flags uint32) int32                                            `name:"cuInit" version:"2000"`
	ErrorName      func(result int32, name **byte) int32                               `name:"cuGetErrorName" version:"6000"`
	DeviceGetCount func(count *int32) int32                                            `name:"cuDeviceGetCount" version:"2000"`
	DeviceGetName  func(name *byte, size, device int32) int32                          `name:"cuDeviceGetName" version:"2000"`
	Retain         func(ctx *uintptr, device int32) int32                              `name:"cuDevicePrimaryCtxRetain" version:"7000"`
	Release        func(device int32) int32                                            `name:"cuDevicePrimaryCtxRelease" version:"11000"`
	Push           func(ctx uintptr) int32                                             `name:"cuCtxPushCurrent" version:"4000"`
	Pop            func(ctx *uintptr) int32                                            `name:"cuCtxPopCurrent" version:"4000"`
	Alloc          func(at *uintptr, size uint64) int32                                `name:"cuMemAlloc" version:"3020"`
	Free           func(at uintptr) int32                                              `name:"cuMemFree" version:"3020"`
	HtoD           func(to uintptr, from *byte, size uint64) int32                     `name:"cuMemcpyHtoD" version:"3020"`
	DtoH           func(to *byte, from uintptr, size uint64) int32                     `name:"cuMemcpyDtoH" version:"3020"`
	Create         func(h *uint64, size uint64, p *allocProp, flags uint64) int32      `name:"cuMemCreate" version:"10020"`
	Drop           func(h uint64) int32                                                `name:"cuMemRelease" version:"10020"`
	Reserve        func(at *uintptr, size, align uint64, hint uintptr, f uint64) int32 `name:"cuMemAddressReserve" version:"10020"`
	Unreserve      func(at uintptr, size uint64) int32                                 `name:"cuMemAddressFree" version:"10020"`
	Map            func(at uintptr, size, offset, h, flags uint64) int32               `name:"cuMemMap" version:"10020"`
	Unmap          func(at uintptr, size uint64) int32                                 `name:"cuMemUnmap" version:"10020"`
	Access         func(at uintptr, size uint64, a *access, count uint64) int32        `name:"cuMemSetAccess" version:"10020"`
}

// location is CUmemLocation of a GPU.
type location struct{ Kind, ID int32 }

// access is CUmemAccessDesc.
type access struct {
	Location location
	Flags    int32
}

// Handle is a CUmemAllocationHandleType: how other processes map VMM memory.
type Handle int32

// Handles of VMM memory: a descriptor for processes of this host, or one for NVLink between hosts, too, which wants an IMEX channel.
const (
	Descriptor Handle = 1
	Fabric     Handle = 8
)

// allocProp is CUmemAllocationProp: pinned memory.
type allocProp struct {
	Kind        int32
	HandleTypes Handle
	Location    location
	_           uintptr
	_           [8]byte
}

const (
	pinned      = 1
	onDevice    = 1
	readWrite   = 3
	nonBlocking = 1
	peerEnabled = 704     // CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
	granularity = 2 << 20 // of VMM memory
)

// Driver is the loaded driver.
type Driver struct {
	calls
	copies
	gpus int

	mu       sync.Mutex
	contexts map[int32]uintptr // primary contexts in use
}

// Open loads libcuda.so.1, or the library that EnvPath names. It does so once for a process.
var Open = sync.OnceValues(load)

func load() (*Driver, error) {
	path := cmp.Or(os.Getenv(EnvPath), "libcuda.so.1")
	d := &Driver{contexts: map[int32]uintptr{}}
	lib, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	var find uintptr
	if err == nil {
		find, err = purego.Dlsym(lib, "cuGetProcAddress")
	}
	if err != nil {
		return nil, fmt.Errorf("no GPU driver: %s: %w", path, err)
	}
	var address func(name string, at *uintptr, version int32, flags uint64) int32
	purego.RegisterFunc(&address, find)
	for _, all := range []reflect.Value{reflect.ValueOf(&d.calls).Elem(), reflect.ValueOf(&d.copies).Elem()} {
		for i := range all.NumField() {
			tag := all.Type().Field(i).Tag
			version, _ := strconv.Atoi(tag.Get("version"))
			var at uintptr
			if address(tag.Get("name"), &at, int32(version), 0) != 0 || at == 0 {
				return nil, fmt.Errorf("no GPU driver: %s has no %s", path, tag.Get("name"))
			}
			purego.RegisterFunc(all.Field(i).Addr().Interface(), at)
		}
	}
	if err := d.err("cuInit", d.Init(0)); err != nil {
		return nil, fmt.Errorf("no GPU driver: %s: %w", path, err)
	}
	var n int32
	err = d.err("cuDeviceGetCount", d.DeviceGetCount(&n))
	d.gpus = int(n)
	return d, err
}

// release ends the driver's use. Tests call it; a process that ends need not.
func (d *Driver) release() {
	for id := range d.contexts {
		_ = d.Release(id)
	}
}

func (d *Driver) err(call string, r int32) error {
	if r == 0 {
		return nil
	}
	var name *byte
	if d.ErrorName(r, &name) != 0 || name == nil {
		return fmt.Errorf("%s: unknown error (%d)", call, r)
	}
	return fmt.Errorf("%s: %s (%d)", call, unix.BytePtrToString(name), r)
}

// GPUs is the number of GPUs that this process sees.
func (d *Driver) GPUs() int { return d.gpus }

// GPU is one GPU of this process.
type GPU struct {
	Name string
	d    *Driver
	id   int32
}

// GPU returns a GPU by its number, as CUDA_VISIBLE_DEVICES leaves them.
func (d *Driver) GPU(id int) (*GPU, error) {
	if id < 0 || id >= d.gpus {
		return nil, fmt.Errorf("no GPU %d: this process sees %d (CUDA_VISIBLE_DEVICES chooses)", id, d.gpus)
	}
	var name [128]byte
	if err := d.err("cuDeviceGetName", d.DeviceGetName(&name[0], int32(len(name)), int32(id))); err != nil {
		return nil, fmt.Errorf("GPU %d: %w", id, err)
	}
	return &GPU{unix.BytePtrToString(&name[0]), d, int32(id)}, nil
}

// within calls f with the GPU's primary context, which is current on the thread meanwhile.
func (g *GPU) within(call string, f func() int32) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g.d.mu.Lock()
	ctx, there := g.d.contexts[g.id]
	var err error
	if !there {
		if err = g.d.err("cuDevicePrimaryCtxRetain", g.d.Retain(&ctx, g.id)); err == nil {
			g.d.contexts[g.id] = ctx
		}
	}
	g.d.mu.Unlock()
	if err == nil {
		err = g.d.err("cuCtxPushCurrent", g.d.Push(ctx))
	}
	if err != nil {
		return err
	}
	defer g.d.Pop(&ctx)
	return g.d.err(call, f())
}

// Memory is memory of a GPU. Free frees it.
type Memory struct {
	g           *GPU
	at          uintptr
	size, piece uint64 // piece: bytes of a handle; 0: memory of cuMemAlloc
	handle      Handle
}

// Alloc allocates size bytes by cuMemAlloc.
func (g *GPU) Alloc(size uint64) (*Memory, error) {
	m := &Memory{g: g, size: size}
	return m.made(func() int32 { return g.d.Alloc(&m.at, size) })
}

// AllocPieces allocates size bytes of VMM memory (cuMemCreate) at least, of handles that have piece bytes each, rounded up to what handles may have.
func (g *GPU) AllocPieces(size, piece uint64, handle Handle) (*Memory, error) {
	piece = (piece + granularity - 1) / granularity * granularity
	m := &Memory{g: g, size: (size + piece - 1) / piece * piece, piece: piece, handle: handle}
	return m.made(m.create)
}

func (m *Memory) made(f func() int32) (*Memory, error) {
	if err := m.g.within("allocation", f); err != nil {
		return nil, fmt.Errorf("%d bytes of GPU %d: %w", m.size, m.g.id, err)
	}
	return m, nil
}

// Handles is the number of handles of VMM memory; 0: it is of cuMemAlloc.
func (m *Memory) Handles() int {
	if m.piece == 0 {
		return 0
	}
	return int(m.size / m.piece)
}

// create makes VMM memory.
func (m *Memory) create() int32 {
	d, here := m.g.d, location{onDevice, m.g.id}
	r := d.Reserve(&m.at, m.size, 0, 0, 0)
	if r != 0 {
		return r
	}
	done := uint64(0)
	for ; done < m.size; done += m.piece {
		var handle uint64
		if r = d.Create(&handle, m.piece, &allocProp{Kind: pinned, HandleTypes: m.handle, Location: here}, 0); r != 0 {
			break
		}
		r = d.Map(m.at+uintptr(done), m.piece, 0, handle, 0)
		d.Drop(handle)
		if r != 0 {
			break
		}
	}
	if r == 0 {
		r = d.Access(m.at, m.size, &access{here, readWrite}, 1)
	}
	if r != 0 {
		m.unmap(done)
		m.at = 0
	}
	return r
}

// unmap takes away the first size bytes of VMM memory, and its addresses.
func (m *Memory) unmap(size uint64) (r int32) {
	for at := uint64(0); at < size; at += m.piece {
		r = max(r, m.g.d.Unmap(m.at+uintptr(at), m.piece))
	}
	return max(r, m.g.d.Unreserve(m.at, m.size))
}

// Hold makes the GPU's context current on this goroutine's thread until release is called.
func (m *Memory) Hold() (release func()) {
	d := m.g.d
	d.mu.Lock()
	ctx := d.contexts[m.g.id]
	d.mu.Unlock()
	runtime.LockOSThread()
	d.Push(ctx)
	return func() {
		d.Pop(&ctx)
		runtime.UnlockOSThread()
	}
}

// Addr returns the address of the first byte.
func (m *Memory) Addr() uint64 { return uint64(m.at) }

// Write copies b to the start of the memory.
func (m *Memory) Write(b []byte) error {
	return m.g.within("cuMemcpyHtoD", func() int32 { return m.g.d.HtoD(m.at, &b[0], uint64(len(b))) })
}

// Read copies the start of the memory to b.
func (m *Memory) Read(b []byte) error {
	return m.g.within("cuMemcpyDtoH", func() int32 { return m.g.d.DtoH(&b[0], m.at, uint64(len(b))) })
}

// Free frees the memory. A second call does nothing.
func (m *Memory) Free() error {
	if m.at == 0 {
		return nil
	}
	err := m.g.within("free", func() int32 {
		if m.piece == 0 {
			return m.g.d.Free(m.at)
		}
		return m.unmap(m.size)
	})
	m.at = 0
	return err
}
