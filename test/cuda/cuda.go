// Package cuda builds a libcuda.so.1 for tests. Its GPUs keep their memory in shared memory of this host. The library is as strict as
// the real driver. A test can make each call fail. lib/switches.h lists all names. App is an application that uses this driver or the
// real one.
package cuda

/*
#cgo CFLAGS: -O1 -Wall -Wextra -Werror -std=gnu17
#cgo LDFLAGS: -ldl
#include <stdint.h>

static long ct_behind(void *f, uint64_t at, uint64_t size, uint64_t *inodes, long room)
{
    return ((long (*)(uint64_t, uint64_t, uint64_t *, long))f)(at, size, inodes, room);
}
static void ct_kill(void *f, int result) { ((void (*)(int))f)(result); }
*/
import "C"

import (
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/test/native"
	"gorail/test/native/board"
)

// CUresults that tests use.
const (
	OutOfMemory    = 2
	Stub           = 34
	NoDevice       = 100
	NoJIT          = 221
	JITOff         = 223
	OS             = 304
	IllegalAddress = 700
	NotPermitted   = 800
)

// Granule is the unit of VMM handle sizes, in bytes.
const Granule = 2 << 20

// Lib is one loaded library, with its own switches and counters.
type Lib struct {
	*board.Board
	dead bool // objects may stay open
}

var part = native.Part{Name: "libcuda.so.1", SOName: "libcuda-imitation.so", Dirs: []string{"test/cuda/lib"}, Exports: "test/cuda/lib/exports.map",
	Sources: []string{"backend/provider/tcp/sock/pack.c", "backend/provider/tcp/sock/pack_rows.c"},
	Include: []string{"test/native", "backend/include", "backend/provider/tcp/sock"}, Flags: []string{"-Wl,-Bsymbolic"}}

var nvml = native.Part{Name: "libnvidia-ml.so.1", SOName: "libnvidia-ml.so.1", Dirs: []string{"test/cuda/nvml"}, Exports: "test/cuda/nvml/exports.map", Flags: []string{"-Wl,-Bsymbolic"}}

// NVML puts an imitated NVML beside a driver's library. GORAIL_TEST_NVML says what it answers.
func NVML(t testing.TB, driver string) {
	t.Helper()
	require.NoError(t, native.Copy(nvml.Build(t), filepath.Join(filepath.Dir(driver), nvml.Name)))
}

// Build builds and loads the library; each call returns another copy. The test fails at its end if an object is still open, or if a
// call broke a rule of the real driver. native.Part says when the test is skipped.
func Build(t testing.TB) *Lib {
	t.Helper()
	l := At(t, part.Build(t))
	t.Cleanup(func() {
		if !l.dead {
			require.Empty(t, l.Open(), "CUDA objects left open")
		}
		require.Empty(t, l.Breaches())
	})
	return l
}

// At loads a library that another process has built.
func At(t testing.TB, path string) *Lib { return &Lib{Board: board.Open(t, path, "ct")} }

// Open lists the kinds of open objects with their numbers, one a line.
func (l *Lib) Open() string { return l.Text("open") }

// Leave lets objects stay open at the test's end: GPUs never ended their work.
func (l *Lib) Leave() { l.dead = true }

// Peermem is the function with which nvidia_peermem finds memory of these GPUs. Lib.Peermem of test/verbs takes it.
func (l *Lib) Peermem() unsafe.Pointer { return l.Func("peermem") }

// Kill puts CUDA of this process into a sticky error: every later call that uses a device returns result. Open objects stay open.
func (l *Lib) Kill(result int) {
	l.dead = true
	C.ct_kill(l.Func("kill"), C.int(result))
}

// Behind returns the inodes of the files that are this process's GPU memory in a range. Package held tells who holds such files.
func (l *Lib) Behind(at, size uint64) []uint64 {
	inodes := make([]C.uint64_t, size/4096+1)
	n := C.ct_behind(l.Func("behind"), C.uint64_t(at), C.uint64_t(size), &inodes[0], C.long(len(inodes)))
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(inodes[i])
	}
	return out
}
