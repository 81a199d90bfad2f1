package gpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/internal/pattern"
	"gorail/test/cuda"
)

// all uses most functions once. The first error ends it, and all resources are freed.
func all(d *gpu.Driver, vram, vmm uint64) (err error) {
	_, err = d.Device(0)
	if err != nil {
		return err
	}
	for _, c := range []struct{ at, size uint64 }{{vram, mib}, {vmm, 2 * cuda.Granule}} {
		what, err := d.What(c.at, c.size)
		if err != nil {
			return err
		}
		s, err := d.Share(what)
		if err != nil {
			return err
		}
		m, _, err := d.Map(s, 0)
		if err != nil {
			return err
		}
		defer m.Close()
		table, err := d.Table(0)
		if err != nil {
			return err
		}
		defer table.Free()
		if err := table.Set(3, m.At(c.at)-c.at); err != nil {
			return err
		}
		l, err := d.Stream(0, 1)
		if err != nil {
			return err
		}
		defer l.Close()
		j, err := l.Job()
		if err != nil {
			return err
		}
		defer func() { _ = j.Free() }()
		own, err := d.VRAM(0, mib)
		if err != nil {
			return err
		}
		defer func() { _ = d.FreeVRAM(0, own) }()
		ops := d.Ops(200)
		if ops == nil {
			return gpu.NoMemory
		}
		defer d.FreeOps(ops)
		for i := range ops {
			ops[i] = gpu.Op{Local: own + uint64(i)*4096, Remote: c.at + uint64(i)*4096, Len: 4096, RemoteRegion: 3}
		}
		for _, how := range []gpu.How{gpu.Kernel, gpu.Engine} {
			if err := j.Post(gpu.Work{Ops: ops, Write: true, Table: table, How: how}); err != nil {
				return err
			}
			for ended := false; !ended; {
				if ended, err = j.Poll(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// TestEveryCallFails makes each call fail at its first uses. The error is returned, no resource stays open, and the next
// attempt succeeds.
func TestEveryCallFails(t *testing.T) {
	for _, call := range []string{"DeviceGet", "DeviceGetUuid", "DevicePrimaryCtxRetain", "CtxPushCurrent", "CtxGetStreamPriorityRange",
		"CtxEnablePeerAccess", "PointerGetAttributes", "MemAlloc", "MemHostAlloc", "IpcGetMemHandle", "MemRetainAllocationHandle",
		"MemAddressReserve", "MemMap", "MemSetAccess", "StreamCreateWithPriority", "EventCreate", "EventRecord", "StreamSynchronize",
		"MemcpyAsync", "MemcpyHtoDAsync", "MemsetD8Async", "ModuleLoadDataEx", "ModuleGetFunction", "LaunchKernel"} {
		t.Run(call, func(t *testing.T) {
			failed := 0
			for nth := 1; nth <= 4 && !(testing.Short() && nth > 2 && failed > 0); nth++ {
				lib := cuda.Build(t)
				lib.Set("late", 0)
				app := cuda.NewApp(t, lib.Path)
				vram, vmm := app.Alloc(1, cuda.Device, mib), app.VMM(1, 2, cuda.Granule, true)
				d, err := gpu.Open(lib.Path)
				require.NoError(t, err)
				lib.Fail(call, nth, cuda.OutOfMemory)
				err = all(d, vram, vmm)
				lib.Fail(call, 0, 0)
				if err != nil {
					failed++
					require.NotContains(t, err.Error(), "unknown")
				}
				require.NoError(t, all(d, vram, vmm), "after failure %d", nth)
				require.NoError(t, d.Close())
				app.Free(1, cuda.Device, vram)
				app.FreeVMM(1, 2, cuda.Granule, vmm)
			}
			require.NotZero(t, failed, "%s never failed", call)
		})
	}
}

// TestCopiesWithoutEvent: copies are queued, but recording their event fails. The job ends only after the copies.
func TestCopiesWithoutEvent(t *testing.T) {
	for _, call := range []string{"EventRecord", "MemcpyAsync"} {
		t.Run(call, func(t *testing.T) {
			r := open(t)
			at := r.alloc(0, cuda.Device, 4*mib)
			r.app.Write(0, at, noise(1, 4*mib))
			j := r.job(r.stream(0, 0))
			ops := r.drv.Ops(2)
			defer r.drv.FreeOps(ops)
			ops[0], ops[1] = gpu.Op{Local: at, Remote: at + mib, Len: mib}, gpu.Op{Local: at, Remote: at + 2*mib, Len: mib}
			want := r.app.Read(0, at, mib)
			r.lib.Set("hold", 1)
			if call == "MemcpyAsync" {
				r.lib.Fail(call, 2, cuda.OutOfMemory) // the event fails, too
			}
			r.lib.Fail("EventRecord", 1, cuda.OutOfMemory)
			require.NoError(t, j.Post(gpu.Work{Ops: ops, Write: true, How: gpu.Engine}))
			for range 100 {
				ended, err := j.Poll()
				require.NoError(t, err)
				require.False(t, ended, "the copy is still in progress")
			}
			r.lib.Set("hold", 0)
			require.ErrorIs(t, finish(t, j), gpu.NoMemory)
			pattern.Same(t, want, r.app.Read(0, at+mib, mib))
			r.run(j, gpu.Work{Ops: ops, Write: true, How: gpu.Engine})
			pattern.Same(t, want, r.app.Read(0, at+2*mib, mib))
		})
	}
}

// TestOddAnswers: if the driver's answer about a copy is neither done nor pending, poll asks again, because the copy may be in
// progress.
func TestOddAnswers(t *testing.T) {
	for call, how := range map[string]gpu.How{"EventQuery": gpu.Engine, "StreamQuery": gpu.Kernel} {
		t.Run(call, func(t *testing.T) {
			r := open(t)
			at := r.alloc(0, cuda.Device, 4*mib)
			j := r.job(r.stream(0, 0))
			ops := r.drv.Ops(2)
			defer r.drv.FreeOps(ops)
			ops[0], ops[1] = gpu.Op{Local: at, Remote: at + mib, Len: mib}, gpu.Op{Local: at, Remote: at + 2*mib, Len: mib}
			r.lib.Set("hold", 1)
			require.NoError(t, j.Post(gpu.Work{Ops: ops, Write: true, How: how}))
			r.lib.FailMany(call, 1, 3, cuda.OS)
			for range 1000 {
				ended, err := j.Poll()
				require.NoError(t, err)
				require.False(t, ended, "the copy is still in progress")
			}
			r.lib.Set("hold", 0)
			require.NoError(t, finish(t, j))
		})
	}
}

// TestSharedVRAM: memory that peers map by descriptors, in a process that cannot map IPC handles of ours. If a call of the
// driver fails, the memory comes from cuMemAlloc. Nothing stays open.
func TestSharedVRAM(t *testing.T) {
	for _, call := range []string{"", "MemCreate", "MemAddressReserve", "MemMap", "MemSetAccess"} {
		r := open(t)
		if call != "" {
			r.lib.Fail(call, 1, cuda.OutOfMemory)
		}
		at, err := r.drv.SharedVRAM(1, 3*mib)
		require.NoError(t, err, call)
		is := r.what(at, 4*mib)
		require.NoError(t, is.NotShared, call)
		require.Equal(t, call == "", is.Kind == gpu.VMMMemory, call)
		r.app.Write(1, at, noise(4, 4*mib))
		require.Equal(t, noise(4, 4*mib), r.app.Read(1, at, 4*mib), call)
		require.NoError(t, r.drv.FreeVRAM(1, at), call)
	}
}
