package gpu_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/gpu"
	"gorail/test/cuda"
)

const mib = 1 << 20

// TestWhat: every kind of memory, and whether other processes can map it.
func TestWhat(t *testing.T) {
	r := open(t)
	dev, pool, managed := r.alloc(1, cuda.Device, 3*mib), r.alloc(0, cuda.Pool, mib), r.alloc(0, cuda.Managed, mib)
	host, vmm, closed := r.alloc(0, cuda.Host, mib), r.vmm(1, 3, cuda.Granule, true), r.vmm(0, 2, cuda.Granule, false)
	contexts := r.lib.Count("contexts")
	page := make([]byte, 4096)
	for name, c := range map[string]struct {
		at, size   uint64
		kind       gpu.Kind
		device     int
		base, room uint64
		pieces     int
		why        error
	}{
		"device":       {dev + 5, 100, gpu.DeviceMemory, 1, dev, 3 * mib, 1, nil},
		"pool":         {pool, mib, gpu.PoolMemory, 0, pool, mib, 1, gpu.Pool},
		"managed":      {managed, mib, gpu.ManagedMemory, 0, managed, mib, 1, gpu.Managed},
		"pinned":       {host + 1, 10, gpu.HostMemory, -1, host, mib, 1, gpu.Pinned},
		"vmm":          {vmm, 3 * cuda.Granule, gpu.VMMMemory, 1, vmm, 3 * cuda.Granule, 3, nil},
		"vmm, middle":  {vmm + cuda.Granule + 7, 1, gpu.VMMMemory, 1, vmm + cuda.Granule, cuda.Granule, 1, nil},
		"vmm, edge":    {vmm + cuda.Granule - 1, 2, gpu.VMMMemory, 1, vmm, 2 * cuda.Granule, 2, nil},
		"vmm, private": {closed, 2 * cuda.Granule, gpu.VMMMemory, 0, closed, 2 * cuda.Granule, 2, gpu.NoHandle},
		"pageable":     {uint64(uintptr(unsafe.Pointer(&page[0]))), 4096, gpu.UnknownMemory, -1, 0, 0, 0, nil},
	} {
		m, err := r.drv.What(c.at, c.size)
		require.NoError(t, err, name)
		require.Equal(t, c.kind, m.Kind, name)
		require.Equal(t, c.device, m.Device, name)
		require.Equal(t, []uint64{c.base, c.room}, []uint64{m.Base, m.Size}, name)
		require.Equal(t, c.pieces, m.Pieces, name)
		require.Equal(t, c.why, m.NotShared, name)
		if m.NotShared != nil {
			_, err = r.drv.Share(m)
			require.ErrorIs(t, err, m.NotShared.(gpu.Why), name)
		}
	}
	require.Equal(t, contexts, r.lib.Count("contexts"), "What made a context")
	for name, at := range map[string][2]uint64{"device": {dev + mib, 2*mib + 1}, "vmm": {vmm, 3*cuda.Granule + 1}, "round": {dev, 1<<64 - 1}} {
		_, err := r.drv.What(at[0], at[1])
		require.ErrorIs(t, err, gpu.Torn, name)
	}
}

// TestCallersContext: calls do not change the context of the caller's thread.
func TestCallersContext(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := open(t)
	at := r.alloc(1, cuda.Device, mib)
	each := func() {
		m := r.what(at, mib)
		_, err := r.drv.Share(m)
		require.NoError(t, err)
		r.scatter(0, 1, false, 10, gpu.Auto)
	}
	each()
	require.False(t, r.app.HasContext())
	require.Zero(t, r.lib.Count("pushed"))
	r.app.Enter(0)
	each()
	require.True(t, r.app.HasContext())
	require.Equal(t, 1, r.lib.Count("pushed"))
	r.app.Leave()
}

// TestPin: pins are counted, and memory that the application pinned stays pinned.
func TestPin(t *testing.T) {
	r := open(t)
	b, err := syscall.Mmap(-1, 0, mib, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	defer syscall.Munmap(b)
	p := unsafe.Pointer(&b[0])
	require.ErrorIs(t, r.drv.Pin(p, mib), gpu.NoDevice, "before any GPU is in use")
	_, err = r.drv.Device(0)
	require.NoError(t, err)
	require.NoError(t, r.drv.Pin(p, mib))
	require.NoError(t, r.drv.Pin(p, mib))
	require.ErrorIs(t, r.drv.Pin(p, mib/2), nil)
	require.Equal(t, 1, r.lib.Count("registered"))
	require.NoError(t, r.drv.Unpin(p, mib/2))
	require.NoError(t, r.drv.Unpin(p, mib))
	require.Equal(t, 1, r.lib.Count("registered"))
	require.ErrorIs(t, r.drv.Close(), gpu.Busy)
	require.NoError(t, r.drv.Unpin(p, mib))
	require.Zero(t, r.lib.Count("registered"))
	require.Error(t, r.drv.Unpin(p, mib))
}

// hold posts a copy of GPU 0 that does not end before end is called.
func (r *rig) hold() (end func()) {
	j := r.job(r.stream(0, 0))
	ops := r.drv.Ops(1)
	ops[0] = gpu.Op{Local: r.alloc(0, cuda.Device, mib), Remote: r.alloc(0, cuda.Device, mib), Len: mib}
	r.lib.Set("hold", 1)
	require.NoError(r, j.Post(gpu.Work{Ops: ops, Write: true, How: gpu.Engine}))
	end = sync.OnceFunc(func() {
		r.lib.Set("hold", 0)
		require.NoError(r, finish(r, j))
		r.drv.FreeOps(ops)
	})
	r.Cleanup(end)
	return end
}

// An Unpin that waits for a GPU holds up neither the pins of other memory nor Close. A Pin of its own memory waits for its end.
func TestPinWhileUnpinWaits(t *testing.T) {
	r := open(t)
	other, err := gpu.Open(r.path) // another engine's use
	require.NoError(t, err)
	b, err := syscall.Mmap(-1, 0, 2*mib, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	defer syscall.Munmap(b)
	first, second := unsafe.Pointer(&b[0]), unsafe.Pointer(&b[mib])
	_, err = r.drv.Device(0)
	require.NoError(t, err)
	require.NoError(t, r.drv.Pin(first, mib))
	end := r.hold()
	unpinned, again := make(chan error, 1), make(chan error, 1)
	go func() { unpinned <- r.drv.Unpin(first, mib) }()
	for r.lib.Count("idle_waits") == 0 {
		runtime.Gosched()
	}
	require.NoError(t, r.drv.Pin(second, mib), "other memory")
	require.Error(t, r.drv.Unpin(first, mib), "its only pin is ending")
	require.NoError(t, other.Close())
	require.ErrorIs(t, r.drv.Close(), gpu.Busy, "a pin is ending")
	go func() { again <- r.drv.Pin(first, mib/2) }()
	require.Empty(t, again, "overlapping memory that is being unpinned")
	end()
	require.NoError(t, <-unpinned)
	require.NoError(t, <-again)
	require.Equal(t, 2, r.lib.Count("registered"))
	require.NoError(t, r.drv.Unpin(first, mib/2))
	require.NoError(t, r.drv.Unpin(second, mib))
}

// The last Close, which waits for the work of others on the GPU, does not hold up the next engine's Open.
func TestOpenWhileCloseWaits(t *testing.T) {
	lib := cuda.Build(t)
	r := openAt(t, lib, filepath.Dir(lib.Path)+"/./"+filepath.Base(lib.Path)) // of the same library, and another Driver
	d, err := gpu.Open(lib.Path)
	require.NoError(t, err)
	_, err = d.Device(0)
	require.NoError(t, err)
	d.FreeOps(d.Ops(1)) // Close frees the pinned memory
	end := r.hold()
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	for lib.Count("idle_waits") == 0 {
		runtime.Gosched()
	}
	next, err := gpu.Open(lib.Path)
	require.NoError(t, err)
	require.NotSame(t, d, next)
	require.NoError(t, d.Close(), "closed before")
	end()
	require.NoError(t, <-closed)
	require.NoError(t, next.Close())
}

// closedOnExec reports that programs which this process executes do not get the descriptor.
func closedOnExec(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC != 0
}

// TestDMABuf: whole pages, and the offset of the range in them.
func TestDMABuf(t *testing.T) {
	r := open(t)
	at := r.alloc(1, cuda.Device, 3*mib)
	for _, byPCIe := range []bool{false, true} {
		fd, offset, err := r.drv.DMABuf(r.what(at, 3*mib), at+4096+17, 8000, byPCIe)
		require.NoError(t, err)
		require.Equal(t, uint64(17), offset)
		require.True(t, closedOnExec(fd))
		require.NoError(t, syscall.Close(fd))
	}
	require.Equal(t, 1, r.lib.Count("dmabufs_pcie"))
	r.lib.Set("dmabuf_pcie", 0)
	fd, _, err := r.drv.DMABuf(r.what(at, 3*mib), at, 3*mib, true)
	require.NoError(t, err, "a driver that doesn't know the flag has one way")
	require.NoError(t, syscall.Close(fd))
	r.lib.Fail("MemGetHandleForAddressRange", 1, cuda.OutOfMemory)
	_, _, err = r.drv.DMABuf(r.what(at, 3*mib), at, 3*mib, true)
	require.ErrorContains(t, err, "cuMemGetHandleForAddressRange")
	vmm := r.vmm(0, 3, cuda.Granule, true)
	fd, offset, err := r.drv.DMABuf(r.what(vmm+cuda.Granule-5, 10), vmm+cuda.Granule-5, 10, false)
	require.NoError(t, err, "one of two handles")
	require.Equal(t, uint64(4091), offset)
	require.NoError(t, syscall.Close(fd))
}

// TestNoDMABuf: a GPU or a driver without dmabufs.
func TestNoDMABuf(t *testing.T) {
	r := open(t)
	r.lib.Set("dmabuf", 0)
	at := r.alloc(0, cuda.Device, mib)
	_, _, err := r.drv.DMABuf(r.what(at, mib), at, mib, true)
	require.ErrorIs(t, err, gpu.NoDMABuf)
	require.ErrorContains(t, err, "CUDA 11.7")
}

// TestFlush: flushes happen only if other devices' writes are not ordered for the GPU.
func TestFlush(t *testing.T) {
	for order, want := range map[int]int{0: 1, 100: 0, 200: 0} {
		r := open(t)
		r.lib.Set("writes_order", order)
		is, err := r.drv.Device(0)
		require.NoError(t, err)
		require.Equal(t, want == 1, is.Flush)
		require.NoError(t, r.drv.Flush(0))
		require.Equal(t, want, r.lib.Count("flushes"))
		if is.Flush {
			r.lib.Fail("FlushGPUDirectRDMAWrites", 1, cuda.OutOfMemory)
			require.ErrorContains(t, r.drv.Flush(0), "cuFlushGPUDirectRDMAWrites")
		}
	}
}

// oneOp is room for an operation, for the time of the test.
func oneOp(t *testing.T, r *rig) []gpu.Op {
	_, err := r.drv.Device(0)
	require.NoError(t, err)
	ops := r.drv.Ops(1)
	t.Cleanup(func() { r.drv.FreeOps(ops) })
	return ops
}

// TestOurs: the driver gives us an address that the application has freed. What is there then is not the application's memory.
func TestOurs(t *testing.T) {
	r := open(t)
	const size = 4 * mib
	ops := oneOp(t, r)
	for name, alloc := range map[string]func(int, uint64) (uint64, error){"memory": r.drv.VRAM, "shared": r.drv.SharedVRAM} {
		at := r.app.Alloc(0, cuda.Device, size)
		ops[0] = gpu.Op{Local: at, Len: size}
		before := r.drv.Identity(at, size)
		require.NotZero(t, before, name)
		require.NoError(t, r.drv.MappedOps(0, ops, false, true), name)
		r.app.Free(0, cuda.Device, at)
		ours, err := alloc(0, size)
		require.NoError(t, err, name)
		require.Equal(t, at, ours, name)
		require.True(t, r.drv.Ours(at, size), name)
		require.ErrorIs(t, r.drv.MappedOps(0, ops, false, true), gpu.Unmapped, name)
		require.Zero(t, r.drv.Identity(at, size), name)
		require.NoError(t, r.drv.FreeVRAM(0, ours), name)
		again := r.app.Alloc(0, cuda.Device, size)
		require.Equal(t, at, again, name)
		require.False(t, r.drv.Ours(at, size), name)
		require.NoError(t, r.drv.MappedOps(0, ops, false, true), name)
		require.NotContains(t, []uint64{0, before}, r.drv.Identity(at, size), name)
		r.app.Free(0, cuda.Device, again)
	}
}

// TestPinnedAtFreed: the driver places pinned memory at an address that the application has freed. No copy for the application touches it.
func TestPinnedAtFreed(t *testing.T) {
	r := open(t)
	const size = 4 * mib
	ops := oneOp(t, r)
	at := r.app.Alloc(0, cuda.Device, size)
	ops[0] = gpu.Op{Local: at, Len: size}
	r.app.Free(0, cuda.Device, at)
	ours := r.drv.Alloc(size - 64)
	defer r.drv.Free(ours)
	require.InDelta(t, float64(at), float64(uintptr(ours)), 64)
	require.ErrorIs(t, r.drv.MappedOps(0, ops, false, true), gpu.Unmapped)
	require.ErrorIs(t, r.drv.MappedOps(0, ops, true, true), gpu.Unmapped)
}

// TestWhatManyHandles: one call of the driver a handle, more only if the driver refuses attributes of mappings together. While a range
// is registered, the driver is asked once.
func TestWhatManyHandles(t *testing.T) {
	r := open(t)
	const n, size = 20, 20 * cuda.Granule
	at := r.vmm(1, n, cuda.Granule, true)
	asks := func() (m gpu.Mem, calls int) {
		before := r.lib.Count("asked")
		m = r.what(at, size)
		return m, r.lib.Count("asked") - before
	}
	all, calls := asks()
	require.Equal(t, n, all.Pieces)
	require.LessOrEqual(t, calls, n+2)
	r.lib.Set("mappings", 0)
	singly, more := asks()
	require.Equal(t, all, singly)
	require.LessOrEqual(t, more, 6*n+2)
	r.lib.Set("mappings", 1)

	end, endSecond := r.drv.Registering(at, size), r.drv.Registering(at, size)
	first, calls := asks()
	require.NotZero(t, calls)
	end()
	second, calls := asks()
	require.Zero(t, calls, "a registration is in progress")
	require.Equal(t, first, second)
	_, err := r.drv.What(at, size+1)
	require.ErrorIs(t, err, gpu.Torn, "another range")
	endSecond()
	_, calls = asks()
	require.NotZero(t, calls, "no registration is in progress")
}

// TestOpenRefused: Open distinguishes an absent library, another library, an old driver, no GPU and a broken driver.
func TestOpenRefused(t *testing.T) {
	lib := cuda.Build(t)
	for name, c := range map[string]struct {
		path string
		set  map[string]int
		why  gpu.Why
		says string
	}{
		"absent":    {"/nowhere/libcuda.so.1", nil, gpu.NoLibrary, "option cuda_path"},
		"other":     {"libm.so.6", nil, gpu.NotADriver, "cuDriverGetVersion"},
		"old":       {lib.Path, map[string]int{"version": 11020}, gpu.OldDriver, "supports CUDA 11.2, but CUDA 11.4 (driver 470) or later is required"},
		"no device": {lib.Path, map[string]int{"init": cuda.NoDevice}, gpu.NoDevice, "CUDA_ERROR_NO_DEVICE"},
		"none seen": {lib.Path, map[string]int{"devices": 0}, gpu.NoDevice, "cuDeviceGetCount"},
		"stub":      {lib.Path, map[string]int{"init": cuda.Stub}, gpu.Failed, "CUDA_ERROR_STUB_LIBRARY"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range c.set {
				lib.Set(k, v)
			}
			_, err := gpu.Open(c.path)
			require.ErrorIs(t, err, c.why)
			require.ErrorContains(t, err, c.says)
			lib.Set("version", 13000)
			lib.Set("init", 0)
			lib.Set("devices", 2)
		})
	}
}

// TestNoCompiler: if the driver cannot translate the PTX, may not, or knows only older versions, copy engines are used.
func TestNoCompiler(t *testing.T) {
	for name, set := range map[string][2]any{"none": {"jit", cuda.NoJIT}, "off": {"jit", cuda.JITOff}, "old": {"ptx", 50}} {
		t.Run(name, func(t *testing.T) {
			r := open(t)
			r.lib.Set(set[0].(string), set[1].(int))
			refusal, err := r.drv.Kernel(0)
			require.NoError(t, err)
			require.Contains(t, refusal, "CUDA_ERROR_")
			r.scatter(0, 1, true, 300, gpu.Auto)
			require.Zero(t, r.lib.Count("launches"))
			require.NotZero(t, r.lib.Count("copies"))
		})
	}
}

// TestWarmUp: memory is looked at while the driver translates the kernel. Streams wait for that, and so does the driver's end.
func TestWarmUp(t *testing.T) {
	r := open(t)
	r.lib.Set("compiling", 1)
	at := r.alloc(0, cuda.Device, mib)
	lazy := gpu.NewLazyDriver(r.path, 0)
	m, err := lazy.Look("test", at, mib, 0)
	require.NoError(t, err)
	require.Equal(t, gpu.DeviceMemory, m.Kind)
	told := make(chan string, 1)
	m.Driver.WarmUp(0, func(refusal string) { told <- refusal })
	made := make(chan error, 1)
	go func() {
		l, err := r.drv.Stream(0, 1)
		if err == nil {
			l.Close()
		}
		made <- err
	}()
	require.Zero(t, r.lib.Count("modules"))
	require.Empty(t, made)
	require.Empty(t, told)
	r.lib.Set("compiling", 0)
	require.NoError(t, <-made)
	require.Empty(t, <-told)
	require.EqualValues(t, 1, r.lib.Count("modules"))
	require.NoError(t, lazy.Close())
}

// TestPTX: the kernels come from the current sources. With the same compiler, the output is identical.
func TestPTX(t *testing.T) {
	for kernel, headers := range map[string][]string{"gather": {"gr_gather.h", "gr_op.h"}, "pack": {"gr_gather.h", "gr_op.h", "gr_pack.h"}} {
		t.Run(kernel, func(t *testing.T) {
			ptx, err := os.ReadFile("kernel/" + kernel + ".ptx")
			require.NoError(t, err)
			sources, err := os.ReadFile("kernel/" + kernel + ".cu")
			require.NoError(t, err)
			for _, f := range headers {
				b, err := os.ReadFile("../include/" + f)
				require.NoError(t, err)
				sources = append(sources, b...)
			}
			sum := sha256.Sum256(sources)
			head := strings.SplitN(string(ptx), "\n", 3)
			require.True(t, strings.HasSuffix(head[0], hex.EncodeToString(sum[:])), "run kernel/make.sh: its sources have changed")
			require.Contains(t, string(ptx), "\n.version 6.0\n.target sm_50\n", "drivers and GPUs of old want these")

			version, err := exec.Command("clang-14", "--version").Output()
			if err != nil || !strings.HasPrefix(string(version), strings.TrimPrefix(head[1], "// ")) {
				t.Skip("the compiler that made it is not here: ", head[1])
			}
			dir := t.TempDir()
			text, err := exec.Command("kernel/make.sh", dir).CombinedOutput()
			require.NoError(t, err, "%s", text)
			made, err := os.ReadFile(filepath.Join(dir, kernel+".ptx"))
			require.NoError(t, err)
			require.Equal(t, string(made), string(ptx))
		})
	}
}
