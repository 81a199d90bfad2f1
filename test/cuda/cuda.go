// Package cuda builds a libcuda.so.1 for tests: GPUs whose memory is shared memory of this host, as strict as the real driver, whose calls can
// be made to fail one by one. lib/switches.h has all names. App is an application that uses a driver, this one or the real one.
package cuda

/*
#cgo CFLAGS: -O1 -Wall -Wextra -Werror -std=gnu17
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include "app.h"

static void *ct_open(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }
static int ct_set(void *dl, const char *name, long value)
{
    return ((int (*)(const char *, long))dlsym(dl, "ct_control_set"))(name, value);
}
static int ct_fail(void *dl, const char *name, long nth, long times, int err)
{
    return ((int (*)(const char *, long, long, int))dlsym(dl, "ct_control_fail"))(name, nth, times, err);
}
static long ct_count(void *dl, const char *name) { return ((long (*)(const char *))dlsym(dl, "ct_control_count"))(name); }
static void ct_text(void *dl, const char *call, char *to, size_t n) { ((void (*)(char *, size_t))dlsym(dl, call))(to, n); }
static void ct_kill(void *dl, int result) { ((void (*)(int))dlsym(dl, "ct_control_kill"))(result); }
*/
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
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
	Path string
	t    testing.TB
	dl   unsafe.Pointer
	dead bool
}

var built struct {
	sync.Once
	data []byte
	err  error
}

// Build compiles the library; each call gives another copy. When the test ends nothing may be open any more, and nothing may have been
// done that a real driver would not have borne. It skips the test where there is no compiler.
func Build(t testing.TB) *Lib {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc here")
	}
	built.Do(func() { built.data, built.err = compile() })
	require.NoError(t, built.err)
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	require.NoError(t, os.WriteFile(path, built.data, 0o755))
	l := At(t, path)
	t.Cleanup(func() {
		if !l.dead {
			require.Empty(t, l.Open(), "left open")
		}
		require.Empty(t, l.Breaches())
	})
	return l
}

// At is a library that another process has built.
func At(t testing.TB, path string) *Lib {
	c := C.CString(path)
	defer C.free(unsafe.Pointer(c))
	l := &Lib{Path: path, t: t, dl: C.ct_open(c)}
	require.NotNil(t, l.dl, "dlopen %s", path)
	return l
}

func compile() ([]byte, error) {
	dir, err := os.MkdirTemp("", "cuda")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	_, file, _, _ := runtime.Caller(0)
	lib, so := filepath.Join(filepath.Dir(file), "lib"), filepath.Join(dir, "cuda.so")
	sources, _ := filepath.Glob(filepath.Join(lib, "*.c"))
	args := []string{"-std=gnu17", "-O1", "-g", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wl,-Bsymbolic",
		"-I" + filepath.Join(lib, "../../board"), "-I" + filepath.Join(lib, "../../../backend/include"), "-Wl,-soname,libcuda-imitation.so", "-Wl,--version-script=" + filepath.Join(lib, "exports.map"), "-o", so}
	if out, err := exec.Command("gcc", append(append(args, sources...), "-pthread")...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gcc: %w\n%s", err, out)
	}
	return os.ReadFile(so)
}

// Set changes a switch for what comes.
func (l *Lib) Set(name string, value int) {
	l.t.Helper()
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	require.Zero(l.t, C.ct_set(l.dl, c, C.long(value)), "no switch %s", name)
}

// Fail makes the n-th call from now fail with that result; n = 0: none.
func (l *Lib) Fail(call string, nth, result int) { l.FailMany(call, nth, 1, result) }

// FailMany makes the n-th call from now fail, and those after it: so many in all.
func (l *Lib) FailMany(call string, nth, times, result int) {
	l.t.Helper()
	c := C.CString(call)
	defer C.free(unsafe.Pointer(c))
	require.Zero(l.t, C.ct_fail(l.dl, c, C.long(nth), C.long(times), C.int(result)), "no call %s", call)
}

// Count reads a counter.
func (l *Lib) Count(name string) int {
	l.t.Helper()
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	n := C.ct_count(l.dl, c)
	require.GreaterOrEqual(l.t, int(n), 0, "counter %s", name)
	return int(n)
}

func (l *Lib) text(call string) string {
	const room = 4096
	to := (*C.char)(C.calloc(1, room))
	defer C.free(unsafe.Pointer(to))
	c := C.CString(call)
	defer C.free(unsafe.Pointer(c))
	C.ct_text(l.dl, c, to, room)
	return C.GoString(to)
}

// Open lists what is open, a line each.
func (l *Lib) Open() string { return l.text("ct_control_open") }

// Breaches lists what a real driver would not have borne, a line each.
func (l *Lib) Breaches() string { return l.text("ct_control_breaches") }

// Peermem is what the kernel's module nvidia_peermem knows of these GPUs: for test/verbs.
func (l *Lib) Peermem() unsafe.Pointer {
	c := C.CString("ct_control_peermem")
	defer C.free(unsafe.Pointer(c))
	return C.dlsym(l.dl, c)
}

// Kill ends CUDA for this process: every call gives that result from now on, and what is open stays so.
func (l *Lib) Kill(result int) {
	l.dead = true
	C.ct_kill(l.dl, C.int(result))
}
