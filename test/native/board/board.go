// Package board controls an imitated library that a test has loaded. It is the Go side of test/native/board.h.
package board

/*
#cgo CFLAGS: -O1 -Wall -Wextra -Werror -std=gnu17
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

static void *bd_open(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }
static int bd_set(void *f, const char *name, long value) { return ((int (*)(const char *, long))f)(name, value); }
static int bd_fail(void *f, const char *name, long nth, long times, int err)
{
    return ((int (*)(const char *, long, long, int))f)(name, nth, times, err);
}
static long bd_count(void *f, const char *name) { return ((long (*)(const char *))f)(name); }
static void bd_text(void *f, char *to, size_t n) { ((void (*)(char *, size_t))f)(to, n); }
*/
import "C"

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Board is one loaded library with its own switches, counters and faults. Its methods fail the test if the library has
// no such name.
type Board struct {
	T      testing.TB
	Path   string
	prefix string
	dl     unsafe.Pointer
}

// Open loads the library at path permanently. Its control functions are named <prefix>_control_<name>.
func Open(t testing.TB, path, prefix string) *Board {
	t.Helper()
	c := C.CString(path)
	defer C.free(unsafe.Pointer(c))
	b := &Board{T: t, Path: path, prefix: prefix, dl: C.bd_open(c)}
	require.NotNil(t, b.dl, "dlopen %s", path)
	return b
}

// Func returns a control function of the library, for cgo to call.
func (b *Board) Func(name string) unsafe.Pointer {
	b.T.Helper()
	c := C.CString(b.prefix + "_control_" + name)
	defer C.free(unsafe.Pointer(c))
	f := C.dlsym(b.dl, c)
	require.NotNil(b.T, f, "%s has no %s_control_%s", b.Path, b.prefix, name)
	return f
}

// Set changes a switch from now on.
func (b *Board) Set(name string, value int) {
	b.T.Helper()
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	require.Zero(b.T, C.bd_set(b.Func("set"), c, C.long(value)), "no switch %s", name)
}

// Fail makes the n-th call from now fail with err; n = 0: none. "*" means any call.
func (b *Board) Fail(call string, nth, err int) { b.FailMany(call, nth, 1, err) }

// FailMany makes times calls fail with err, starting with the n-th call from now.
func (b *Board) FailMany(call string, nth, times, err int) {
	b.T.Helper()
	c := C.CString(call)
	defer C.free(unsafe.Pointer(c))
	require.Zero(b.T, C.bd_fail(b.Func("fail"), c, C.long(nth), C.long(times), C.int(err)), "no call %s", call)
}

// Count reads a counter.
func (b *Board) Count(name string) int {
	b.T.Helper()
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	n := C.bd_count(b.Func("count"), c)
	require.GreaterOrEqual(b.T, int(n), 0, "counter %s", name)
	return int(n)
}

// Text returns a control function's text about the library's state, one entry per line.
func (b *Board) Text(name string) string {
	const room = 4096
	to := (*C.char)(C.calloc(1, room))
	defer C.free(unsafe.Pointer(to))
	C.bd_text(b.Func(name), to, room)
	return C.GoString(to)
}

// Breaches lists operations that a real library or device would not have accepted, one per line.
func (b *Board) Breaches() string { return b.Text("breaches") }
