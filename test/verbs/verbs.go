// Package verbs builds a libibverbs and librdmacm (in one file) for tests: reliable connections within one process, in memory,
// whose calls can be made to fail one by one, and which counts what it is asked. lib/switches.h has all names.
package verbs

/*
#cgo CFLAGS: -O1 -Wall -Wextra -Werror -std=gnu17
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

static void *vt_open(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }
static int vt_set(void *dl, const char *name, long value)
{
    return ((int (*)(const char *, long))dlsym(dl, "vt_control_set"))(name, value);
}
static int vt_fail(void *dl, const char *name, long nth, long times, int err)
{
    return ((int (*)(const char *, long, long, int))dlsym(dl, "vt_control_fail"))(name, nth, times, err);
}
static long vt_count(void *dl, const char *name) { return ((long (*)(const char *))dlsym(dl, "vt_control_count"))(name); }
static void vt_zero(void *dl) { ((void (*)(void))dlsym(dl, "vt_control_zero"))(); }
static void vt_break(void *dl) { ((void (*)(void))dlsym(dl, "vt_control_break"))(); }
static void vt_breaches(void *dl, char *to, size_t n) { ((void (*)(char *, size_t))dlsym(dl, "vt_control_breaches"))(to, n); }
static void vt_peermem(void *dl, void *find) { ((void (*)(void *))dlsym(dl, "vt_control_peermem"))(find); }
static int vt_event(void *dl, int device, int type, int port)
{
    return ((int (*)(int, int, int))dlsym(dl, "vt_control_event"))(device, type, port);
}
*/
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Events that Lib.Event raises: enum ibv_event_type.
const (
	CQErr       = 0
	DeviceFatal = 8
	PortActive  = 9
	PortErr     = 10
	LIDChange   = 11
	GIDChange   = 18
)

// Lib is one loaded library with switches and counters of its own.
type Lib struct {
	MayOverrun bool // the test lets nobody poll: completion queues may run over
	Path       string
	t          testing.TB
	dl         unsafe.Pointer
}

var built [2]struct {
	sync.Once
	data []byte
	err  error
	skip string
}

// Build compiles the library; each call gives another copy. When the test ends no object may be open any more, and nothing may
// have been done that a real library would not have borne. It skips the test where there is no compiler or no header.
func Build(t testing.TB) *Lib { return build(t, 0) }

// BuildOld is a libibverbs of before rdma-core 28, without ibv_reg_mr_iova2.
func BuildOld(t testing.TB) *Lib { return build(t, 1) }

func build(t testing.TB, old int) *Lib {
	t.Helper()
	b := &built[old]
	b.Do(func() { b.data, b.skip, b.err = compile(old == 1) })
	if b.skip != "" {
		t.Skip(b.skip)
	}
	require.NoError(t, b.err)
	l := &Lib{Path: filepath.Join(t.TempDir(), "libibverbs.so.1"), t: t}
	require.NoError(t, os.WriteFile(l.Path, b.data, 0o755))
	path := C.CString(l.Path)
	defer C.free(unsafe.Pointer(path))
	l.dl = C.vt_open(path)
	require.NotNil(t, l.dl, "dlopen %s", l.Path)
	t.Cleanup(func() {
		require.Empty(t, l.Open(), "left open")
		for _, b := range strings.Split(strings.TrimSpace(l.Breaches()), "\n") {
			require.True(t, b == "" || l.MayOverrun && strings.HasSuffix(b, "is overrun"), b)
		}
	})
	return l
}

func compile(old bool) (data []byte, skip string, err error) {
	if _, err := exec.LookPath("gcc"); err != nil {
		return nil, "no gcc here", nil
	}
	dir, err := os.MkdirTemp("", "verbs")
	if err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(dir)
	_, file, _, _ := runtime.Caller(0)
	lib, so := filepath.Join(filepath.Dir(file), "lib"), filepath.Join(dir, "verbs.so")
	sources, _ := filepath.Glob(filepath.Join(lib, "*.c"))
	exports := "exports.map"
	args := []string{"-std=gnu17", "-O1", "-g", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wl,-Bsymbolic",
		"-I" + filepath.Join(lib, "../../board"), "-Wl,-soname,libibverbs-imitation.so", "-o", so}
	if old {
		exports = "exports-old.map"
		args = append(args, "-DVT_OLD")
	}
	args = append(append(args, "-Wl,--version-script="+filepath.Join(lib, exports)), sources...)
	if out, err := exec.Command("gcc", append(args, "-pthread")...).CombinedOutput(); err != nil {
		if strings.Contains(string(out), "infiniband/verbs.h: No such file") {
			return nil, "no libibverbs headers here", nil
		}
		if strings.Contains(string(out), "rdma/rdma_cma.h: No such file") {
			return nil, "no librdmacm headers here", nil
		}
		return nil, "", fmt.Errorf("gcc: %w\n%s", err, out)
	}
	data, err = os.ReadFile(so)
	return data, "", err
}

// Set changes a switch for what comes.
func (l *Lib) Set(name string, value int) {
	l.t.Helper()
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	require.Zero(l.t, C.vt_set(l.dl, c, C.long(value)), "no switch %s", name)
}

// Fail makes the n-th call from now fail with errno; n = 0: none.
func (l *Lib) Fail(call string, nth int, errno syscall.Errno) { l.FailMany(call, nth, 1, errno) }

// FailMany makes the n-th call from now fail, and those after it: so many in all.
func (l *Lib) FailMany(call string, nth, times int, errno syscall.Errno) {
	l.t.Helper()
	c := C.CString(call)
	defer C.free(unsafe.Pointer(c))
	require.Zero(l.t, C.vt_fail(l.dl, c, C.long(nth), C.long(times), C.int(errno)), "no call %s", call)
}

// Count reads a counter.
func (l *Lib) Count(name string) int {
	l.t.Helper()
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	n := C.vt_count(l.dl, c)
	require.GreaterOrEqual(l.t, int(n), 0, "counter %s", name)
	return int(n)
}

// Zero starts the counters anew, but for those of open objects.
func (l *Lib) Zero() { C.vt_zero(l.dl) }

// Break takes all queue pairs to the state ERR: everything posted is flushed.
func (l *Lib) Break() { C.vt_break(l.dl) }

// Open is what is open: kind and number.
func (l *Lib) Open() map[string]int {
	l.t.Helper()
	open := map[string]int{}
	for _, name := range []string{"lists", "contexts", "pds", "mrs", "channels", "cqs", "qps", "cm_channels", "cm_ids"} {
		if n := l.Count(name); n != 0 {
			open[name] = n
		}
	}
	return open
}

// Breaches are lines about what a real library would not have borne.
func (l *Lib) Breaches() string {
	const room = 4096
	b := (*C.char)(C.malloc(room))
	defer C.free(unsafe.Pointer(b))
	C.vt_breaches(l.dl, b, room)
	return C.GoString(b)
}

// Event raises an event of a port, or of the device, at everyone who has it open.
func (l *Lib) Event(device, event, port int) {
	l.t.Helper()
	require.Positive(l.t, int(C.vt_event(l.dl, C.int(device), C.int(event), C.int(port))), "nobody has the device open")
}

// Peermem loads nvidia_peermem for the GPUs of a libcuda of ours (its Lib.Peermem), nil unloads it: by their addresses alone GPUs' memory
// is nothing that can be registered.
func (l *Lib) Peermem(find unsafe.Pointer) { C.vt_peermem(l.dl, find) }

// Sys is a /sys with one GID for each of so many devices and ports: an address of the loopback interface for RoCE.
func Sys(devices, ports int, ethernet bool) fstest.MapFS {
	sys := fstest.MapFS{}
	for d := range devices {
		for p := 1; p <= ports; p++ {
			dir := fmt.Sprintf("class/infiniband/hca%d/ports/%d/", d, p)
			gid, kind := fmt.Sprintf("0000:0000:0000:0000:0000:ffff:7f00:%02x%02x", d, p), "RoCE v2"
			if !ethernet {
				gid, kind = fmt.Sprintf("fe80:0000:0000:0000:0002:c903:0000:%02x%02x", d, p), "IB/RoCE v1"
			}
			sys[dir+"gids/0"] = &fstest.MapFile{Data: []byte(gid + "\n")}
			sys[dir+"gid_attrs/types/0"] = &fstest.MapFile{Data: []byte(kind + "\n")}
			sys[dir+"gid_attrs/ndevs/0"] = &fstest.MapFile{Data: []byte("lo\n")}
		}
	}
	return sys
}

// OnPCI puts a device of a /sys behind a path of the PCI bus ("pci0000:15/0000:15:01.0/..."): RDMA device number n, or a function that is none (a GPU)
// with n < 0.
func OnPCI(sys fstest.MapFS, n int, path string) {
	link := "bus/pci/devices/" + path[strings.LastIndex(path, "/")+1:]
	if n >= 0 {
		link = fmt.Sprintf("class/infiniband/hca%d/device", n)
	}
	sys["devices/"+path+"/vendor"] = &fstest.MapFile{Data: []byte("0x10de\n")}
	sys[link] = &fstest.MapFile{Mode: os.ModeSymlink | 0o777, Data: []byte(strings.Repeat("../", strings.Count(link, "/")) + "devices/" + path)}
}
