package e2e

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/cuda"
	"gorail/test/worker"
)

// faultRound registers GPU memory on both sides, writes it whole and in scattered blocks, and closes the agents. The n-th
// driver call of one side's process fails; none if n is 0. It returns the number of that process's driver calls, and the
// step that failed.
func faultRound(t *testing.T, ini, tgt *worker.Worker, o worker.Options, m worker.GPUMem, side, n int) (calls int, wrong string) {
	const size = 2 * cuda.Granule
	p := &pairOf{env: o.Env, ini: agent(ini, o.Env, "alice"), tgt: agent(tgt, o.Env, "bob")}
	bad := []*worker.Worker{ini, tgt}[side]
	a, b := p.ini.AllocGPU(size, worker.GPUMem{Device: 0, Kind: m.Kind, Handles: m.Handles}), p.tgt.AllocGPU(size, m)
	a.Fill(seedA)
	b.Fill(seedB)
	l := worker.Layout{Len: 100, Stride: 4096, Count: size / 4096, Shuffle: 1}
	before := bad.GPUCount("*")
	bad.GPUFail("*", n, cuda.OutOfMemory)
	wrong = func() string {
		// Two regions, so that the transfer needs a table.
		if err := p.tgt.Register(b.Span(0, size/2), b.Span(size/2, size/2)); err != nil {
			return "target's register"
		}
		if err := p.ini.Register(a.All()); err != nil {
			return "initiator's register"
		}
		p.ini.Learn(p.tgt)
		for _, s := range []worker.XferSpec{{Op: nixlapi.Write, Local: a.Span(0, size/2), Remote: b.Span(0, size/2), Peer: "bob"},
			{Op: nixlapi.Write, Local: a.At(l), Remote: b.At(l), Peer: "bob"}} {
			x, err := p.ini.TryXfer(s)
			if err != nil {
				return "prepare"
			}
			began := time.Now()
			status := x.Try(limit)
			require.NotEqual(t, nixlapi.InProgress, status, "failed driver call %d: the transfer hangs", n)
			require.Less(t, time.Since(began), limit)
			require.NoError(t, x.Release())
			if status != nixlapi.Success {
				return fmt.Sprint("transfer: ", status)
			}
		}
		return ""
	}()
	calls = bad.GPUCount("*") - before
	bad.GPUFail("*", 0, 0)
	if wrong == "" {
		require.EqualValues(t, -1, b.Diff(0, size/2, seedA, 0))
		for at := uint64(size / 2); at < size; at += size / 16 {
			require.EqualValues(t, -1, b.Diff(at, 100, seedA, at))
			require.EqualValues(t, -1, b.Diff(at+100, 3996, seedB, at+100))
		}
	} else {
		a.Want(seedA)
	}
	require.NoError(t, p.ini.Close())
	require.NoError(t, p.tgt.Close())
	a.Free()
	b.Free()
	for _, w := range []*worker.Worker{ini, tgt} {
		open, breaches := w.GPUState()
		require.Empty(t, breaches, "call %d: %s", n, wrong)
		require.Empty(t, open, "call %d: %s", n, wrong)
	}
	return calls, wrong
}

// TestVRAMEveryCallFails: one driver call fails, each in turn, on either side. The transfer moves the right bytes, or a
// step returns an error. Nothing hangs, and the driver has nothing open at the end.
func TestVRAMEveryCallFails(t *testing.T) {
	t.Parallel()
	if os.Getenv("GORAIL_TEST_CUDA") != "" {
		t.Skip("the real driver fails when it likes")
	}
	for _, c := range []struct {
		provider, name string
		m              worker.GPUMem
	}{{smProvider(), "cudaMalloc", device(1)}, {smProvider(), "VMM", worker.GPUMem{Device: 1, Handles: 2}}, {"tcp", "cudaMalloc", device(1)}} {
		for side, who := range []string{"initiator", "target"} {
			t.Run(strings.Join([]string{c.provider, c.name, who}, " "), func(t *testing.T) {
				o, m := gpuHost(t), c.m
				o.Setenv = append(o.Setenv, "GORAIL_PROVIDER="+c.provider)
				ini, tgt := worker.Start(t, o), worker.Start(t, o)
				for _, w := range []*worker.Worker{ini, tgt} {
					w.GPUSwitch("late", 0)
				}
				calls, wrong := faultRound(t, ini, tgt, o, m, side, 0)
				require.Empty(t, wrong)
				outcomes := map[string]int{}
				for n := 1; n <= calls; n += rounds(5, 1) {
					_, wrong := faultRound(t, ini, tgt, o, m, side, n)
					outcomes[wrong]++
				}
				t.Log(calls, outcomes)
				if who == "initiator" { // memory that the target cannot share is staged, without a word
					says(t, ini, "CUDA_ERROR_OUT_OF_MEMORY")
				}
			})
		}
	}
}

// TestVRAMFabric: VMM memory has only a fabric handle (for NVLink between hosts), and both processes are on one host. If the
// driver does not export the handle, transfers go through bounce buffers, and the log says why.
func TestVRAMFabric(t *testing.T) {
	t.Parallel()
	if os.Getenv("GORAIL_TEST_CUDA") != "" {
		t.Skip("needs a driver with IMEX channels: not tested on hardware")
	}
	for _, refused := range []bool{false, true} {
		t.Run(fmt.Sprintf("refused=%v", refused), func(t *testing.T) {
			const size = 2 * cuda.Granule
			o := gpuHost(t)
			o.Setenv = append(o.Setenv, "GORAIL_LOG=info")
			ini, tgt := worker.Start(t, o), worker.Start(t, o)
			ini.GPUSwitch("fabric", 1)
			tgt.GPUSwitch("fabric", 1)
			p := &pairOf{env: o.Env, ini: agent(ini, o.Env, "alice"), tgt: agent(tgt, o.Env, "bob")}
			a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.AllocGPU(size, worker.GPUMem{Device: 1, Handles: 1, Fabric: true})
			b.Fill(seedB)
			if refused {
				tgt.GPUFail("MemExportToShareableHandle", 1, cuda.NotPermitted)
			}
			require.NoError(t, p.tgt.Register(b.All()))
			p.ini.Learn(p.tgt)
			x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.All(), Remote: b.All(), Peer: "bob"})
			x.Do(limit)
			b.Want(seedA)
			if refused {
				says(t, ini, "and the driver does not export that handle")
				says(t, ini, "transfers go through bounce buffers")
				says(t, tgt, "is there an IMEX channel?")
			} else {
				require.NotContains(t, ini.Output(), "transfers go through bounce buffers")
			}
			p.endGPU(t, a, b)
		})
	}
}

// TestVRAMReleaseEndsIt: a transfer that needs 40 s is released. Its copies have ended within 15 s.
func TestVRAMReleaseEndsIt(t *testing.T) {
	t.Parallel()
	if os.Getenv("GORAIL_TEST_CUDA") != "" {
		t.Skip("the real driver is too fast")
	}
	const size = 4 << 20
	p := gpuPair(t, params("cancel_timeout", "60s"))
	a, b := p.ini.GPUBuffer(size, seedA, device(0)), p.tgt.GPUBuffer(size, seedB, device(1))
	p.ini.Learn(p.tgt)
	l := worker.Layout{Len: 256, Stride: 512, Count: 8000, Shuffle: 1}
	p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.At(l), Remote: b.At(l), Peer: "bob"}).Do(limit)
	b.Fill(seedB)
	p.ini.GPUSwitch("op", 5000) // 8000 operations, one after the other: 40 s
	x := p.ini.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.At(l), Remote: b.At(l), Peer: "bob"})
	require.Equal(t, nixlapi.InProgress, x.Post())
	began := time.Now()
	require.NoError(t, x.Release())
	require.NoError(t, p.ini.Deregister(a.All())) // waits for the copies
	require.Less(t, time.Since(began), 15*time.Second)
	p.ini.GPUSwitch("op", 0)
	require.NoError(t, p.tgt.Deregister(b.All()))
	a.Free()
	b.Free()
	gpuClean(t, p.ini, p.tgt)
}

// strict is the TB of helpers inside a worker: a failure ends the process, and so the test fails.
type strict struct {
	testing.TB
	last *func() // the Cleanup function, which closes the application
}

func (strict) Name() string                   { return "worker" }
func (strict) Helper()                        {}
func (s strict) Cleanup(f func())             { *s.last = f }
func (strict) Errorf(format string, a ...any) { fmt.Fprintf(os.Stderr, format+"\n", a...) }
func (strict) FailNow()                       { panic("the GPUs' driver refused an application") }

// application is a worker's memory on GPUs.
type application struct {
	*cuda.App
	lib   *cuda.Lib // nil: the real driver
	close func()
}

func newApplication() worker.GPU {
	path := os.Getenv("GORAIL_CUDA_PATH")
	a := new(application)
	a.App = cuda.NewApp(strict{last: &a.close}, path)
	if path != os.Getenv("GORAIL_TEST_CUDA") {
		a.lib = cuda.At(strict{last: new(func())}, path)
	}
	return a
}

func (a *application) Alloc(m worker.GPUMem, size uint64) uint64 {
	if m.Host {
		return a.HostVMM(m.Device, m.Handles, size/uint64(m.Handles), m.Fabric)
	}
	if m.Fabric {
		return a.FabricVMM(m.Device, m.Handles, size/uint64(m.Handles))
	}
	if m.Handles > 0 {
		return a.VMM(m.Device, m.Handles, size/uint64(m.Handles), !m.Private)
	}
	return a.App.Alloc(m.Device, cuda.Kind(m.Kind), size)
}

func (a *application) Free(m worker.GPUMem, size, at uint64) {
	if m.Handles > 0 {
		a.FreeVMM(m.Device, m.Handles, size/uint64(m.Handles), at)
		return
	}
	a.App.Free(m.Device, cuda.Kind(m.Kind), at)
}

func (a *application) Unmap(m worker.GPUMem, size, at uint64) {
	if m.Handles > 0 {
		a.UnmapVMM(m.Device, m.Handles, size/uint64(m.Handles), at)
		return
	}
	a.App.Free(m.Device, cuda.Kind(m.Kind), at)
}

func (a *application) Map(m worker.GPUMem, size, at uint64) error {
	if m.Handles > 0 {
		mapThere := a.MapVMM
		switch {
		case m.Host:
			mapThere = a.MapHostVMM
		case m.Fabric:
			mapThere = a.MapFabricVMM
		}
		mapThere(m.Device, m.Handles, size/uint64(m.Handles), at)
		return nil
	}
	var others []uint64 // held meanwhile, so that each allocation has another address
	defer func() {
		for _, other := range others {
			a.App.Free(m.Device, cuda.Kind(m.Kind), other)
		}
	}()
	for range 16 {
		got := a.App.Alloc(m.Device, cuda.Kind(m.Kind), size)
		if got == at {
			return nil
		}
		others = append(others, got)
	}
	return fmt.Errorf("the driver gives other addresses than %#x", at)
}

func (a *application) Protect(m worker.GPUMem, size, at uint64) {
	a.ProtectVMM(m.Device, size, at)
}

func (a *application) Behind(at, size uint64) []uint64 {
	if a.lib == nil {
		return nil
	}
	return a.lib.Behind(at, size)
}

func (a *application) Switch(name string, value int)     { a.lib.Set(name, value) }
func (a *application) Fail(call string, nth, result int) { a.lib.Fail(call, nth, result) }
func (a *application) Count(name string) int             { return a.lib.Count(name) }

func (a *application) State() (open, wrong string) {
	if a.lib == nil {
		return "", ""
	}
	a.close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return a.lib.Open(), a.lib.Breaches()
}
