package gpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gorail/backend/gpu"
	"gorail/test/cuda"
)

// TestHandleOfAllocation: the driver is asked once for the IPC handle of an allocation. Memory that is allocated anew at its address is another one.
func TestHandleOfAllocation(t *testing.T) {
	r := open(t)
	const size = 4 * mib
	at := r.app.Alloc(0, cuda.Device, size)
	was := r.what(at, mib)
	first, err := r.drv.Share(was)
	require.NoError(t, err)
	r.lib.FailMany("IpcGetMemHandle", 1, 1000, cuda.OutOfMemory)
	again, err := r.drv.Share(r.what(at+mib, 2*mib))
	require.NoError(t, err, "the driver was asked again")
	require.Equal(t, first, again)
	other := r.alloc(0, cuda.Device, size)
	_, err = r.drv.Share(r.what(other, mib))
	require.ErrorIs(t, err, gpu.NoMemory, "another allocation has its own handle")

	r.app.Free(0, cuda.Device, at)
	anew := r.alloc(0, cuda.Device, size)
	require.Equal(t, at, anew, "the imitation takes the address that was freed last")
	is := r.what(anew, mib)
	require.NotEqual(t, was.Buffer, is.Buffer)
	_, err = r.drv.Share(is)
	require.ErrorIs(t, err, gpu.NoMemory, "the handle is that of memory that was freed")
	r.lib.FailMany("IpcGetMemHandle", 0, 0, 0)
	fresh, err := r.drv.Share(is)
	require.NoError(t, err)
	require.NotEqual(t, first, fresh)
	r.lib.FailMany("IpcGetMemHandle", 1, 1000, cuda.OutOfMemory)
	again, err = r.drv.Share(is)
	require.NoError(t, err)
	require.Equal(t, fresh, again)
	was.Buffer++ // what was asked about before the memory was freed
	_, err = r.drv.Share(was)
	require.ErrorIs(t, err, gpu.Changed)
}

// TestPlainAllocation: of the allocation that was exported last, the driver is not asked whether it is VMM memory or of a pool. All other memory
// stays what it is.
func TestPlainAllocation(t *testing.T) {
	r := open(t)
	plain, other := r.alloc(0, cuda.Device, 2*mib), r.alloc(0, cuda.Device, 2*mib)
	pool, managed, vmm := r.alloc(0, cuda.Pool, mib), r.alloc(0, cuda.Managed, mib), r.vmm(0, 2, cuda.Granule, true)
	asked := func(at uint64) int {
		before := r.lib.Count("asked")
		require.Equal(t, gpu.DeviceMemory, r.what(at, mib).Kind)
		return r.lib.Count("asked") - before
	}
	full := asked(plain)
	_, err := r.drv.Share(r.what(plain, mib))
	require.NoError(t, err)
	require.Less(t, asked(plain+mib), full)
	require.Equal(t, full, asked(other))
	for at, kind := range map[uint64]gpu.Kind{pool: gpu.PoolMemory, managed: gpu.ManagedMemory, vmm: gpu.VMMMemory} {
		require.Equal(t, kind, r.what(at, mib).Kind)
	}
}

// TestDeviceOrdinals: a GPU that there is not, is an error, also beyond what a table has room for.
func TestDeviceOrdinals(t *testing.T) {
	r := open(t)
	for _, ordinal := range []int{-1, r.drv.Devices(), 64, 1 << 20} {
		_, err := r.drv.Device(ordinal)
		require.ErrorIs(t, err, gpu.NoDevice, ordinal)
	}
	for range 2 { // the second answer is that of the first
		is, err := r.drv.Device(r.drv.Devices() - 1)
		require.NoError(t, err)
		require.NotEmpty(t, is.PCI)
	}
}
