package e2e

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"gorail/test/cuda"
	"gorail/test/worker"
)

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
		a.MapVMM(m.Device, m.Handles, size/uint64(m.Handles), at)
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
