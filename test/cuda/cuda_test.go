package cuda

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// drivers runs a test on the imitation, and on the real driver if there is one (make test-gpu). Both must refuse the same calls.
func drivers(t *testing.T, body func(t *testing.T, a *App)) {
	t.Run("imitation", func(t *testing.T) { body(t, NewApp(t, Build(t).Path)) })
	t.Run("Real", func(t *testing.T) {
		path := os.Getenv("GORAIL_TEST_CUDA")
		if path == "" {
			t.Skip("needs a GPU; run make test-gpu")
		}
		body(t, NewApp(t, path))
	})
}

// TestRealStrict: each mistake gets the CUresult of the real driver.
func TestRealStrict(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	drivers(t, func(t *testing.T, a *App) {
		for name, c := range map[string]struct{ mistake, says int }{
			"no context": {NoContext, 201}, "VMM size": {VMMSize, 1}, "export without handle type": {VMMExport, 1}, "IPC of VMM": {VMMIPC, 1},
			"own IPC handle": {OwnIPC, 201}, "double free": {DoubleFree, 1}, "registered twice": {RegisteredTwice, 712},
			"addresses in use": {FreeMapped, 1}, "newer PTX": {NewPTX, 222}, "flags of a stream": {StreamFlags, 1},
		} {
			require.Equal(t, c.says, a.Wrong(c.mistake), name)
		}
	})
}

// TestHandsOff: the CPU faults when it reads device memory of the imitation.
func TestHandsOff(t *testing.T) {
	a := NewApp(t, Build(t).Path)
	at := a.Alloc(0, Device, 4096)
	defer a.Free(0, Device, at)
	a.Write(0, at, []byte{1, 2, 3})
	require.Equal(t, []byte{1, 2, 3}, a.Read(0, at, 3))
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	require.Panics(t, func() { _ = **(**byte)(unsafe.Pointer(&at)) })
}

// TestSticky: after an illegal address every call returns that error.
func TestSticky(t *testing.T) {
	l := Build(t)
	a := NewApp(t, l.Path)
	l.Kill(IllegalAddress)
	require.Equal(t, IllegalAddress, a.Wrong(NoContext))
	require.Equal(t, IllegalAddress, a.Wrong(VMMSize))
}

// TestLeft: free memory of a GPU is less by what is allocated, and is all there again after the memory was unmapped.
func TestLeft(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const last = 7 // of the imitation: no other test uses it meanwhile
	l, real := Build(t), os.Getenv("GORAIL_TEST_CUDA")
	l.Set("devices", last+1)
	for path, device := range map[string]int{l.Path: last, real: 0} {
		if path == "" {
			continue
		}
		const size = 64 * Granule
		a := NewApp(t, path)
		before := a.Left(device)
		at := a.VMM(device, 2, size/2, true)
		require.GreaterOrEqual(t, before-a.Left(device), uint64(size))
		a.UnmapVMM(device, 2, size/2, at)
		require.GreaterOrEqual(t, a.Left(device)+Granule, before)
		a.MapVMM(device, 1, size, at)
		require.GreaterOrEqual(t, before-a.Left(device), uint64(size))
		a.Write(device, at, []byte{1, 2, 3})
		require.Equal(t, []byte{1, 2, 3}, a.Read(device, at, 3))
		a.FreeVMM(device, 1, size, at)
	}
}

// TestBehind: other memory at the same addresses is another file, and unmapped memory is none.
func TestBehind(t *testing.T) {
	l := Build(t)
	a := NewApp(t, l.Path)
	at := a.VMM(0, 2, Granule, true)
	first := l.Behind(at, 2*Granule)
	require.Len(t, first, 2)
	a.UnmapVMM(0, 2, Granule, at)
	require.Empty(t, l.Behind(at, 2*Granule))
	a.MapVMM(0, 1, 2*Granule, at)
	second := l.Behind(at, 2*Granule)
	require.Len(t, second, 1)
	require.NotContains(t, first, second[0])
	a.FreeVMM(0, 1, 2*Granule, at)
}
