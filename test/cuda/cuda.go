// Package cuda builds a libcuda.so.1 for tests: GPUs whose memory is shared memory of this host, as strict as the real driver, whose calls can
// be made to fail one by one. lib/switches.h has all names. App is an application that uses a driver, this one or the real one.
package cuda

/*
#cgo CFLAGS: -O1 -Wall -Wextra -Werror -std=gnu17
#cgo LDFLAGS: -ldl

static void ct_kill(void *f, int result) { ((void (*)(int))f)(result); }
*/
import "C"

import (
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

// Granule is what sizes of VMM handles are multiples of.
const Granule = 2 << 20

// Lib is one loaded library with switches and counters of its own.
type Lib struct {
	*board.Board
	dead bool
}

var part = native.Part{Name: "libcuda.so.1", SOName: "libcuda-imitation.so", Dirs: []string{"test/cuda/lib"}, Exports: "test/cuda/lib/exports.map",
	Include: []string{"test/native", "backend/include"}, Flags: []string{"-Wl,-Bsymbolic"}}

// Build makes the library; each call gives another copy. When the test ends nothing may be open any more, and nothing may have been
// done that a real driver would not have borne. See native.Part for what skips the test.
func Build(t testing.TB) *Lib {
	t.Helper()
	l := At(t, part.Build(t))
	t.Cleanup(func() {
		if !l.dead {
			require.Empty(t, l.Open(), "left open")
		}
		require.Empty(t, l.Breaches())
	})
	return l
}

// At is a library that another process has built.
func At(t testing.TB, path string) *Lib { return &Lib{Board: board.Open(t, path, "ct")} }

// Open lists what is open, a line each.
func (l *Lib) Open() string { return l.Text("open") }

// Peermem is what the kernel's module nvidia_peermem knows of these GPUs: for test/verbs.
func (l *Lib) Peermem() unsafe.Pointer { return l.Func("peermem") }

// Kill ends CUDA for this process: every call gives that result from now on, and what is open stays so.
func (l *Lib) Kill(result int) {
	l.dead = true
	C.ct_kill(l.Func("kill"), C.int(result))
}
