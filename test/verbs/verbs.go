// Package verbs builds a libibverbs for tests. The library has reliable connections within one process, in
// memory. A test can make each call fail. The library counts requests. lib/switches.h lists all names.
package verbs

/*
#cgo CFLAGS: -O1 -Wall -Wextra -Werror -std=gnu17

static void vt_call(void *f) { ((void (*)(void))f)(); }
static void vt_peermem(void *f, void *find) { ((void (*)(void *))f)(find); }
static int vt_gid(void *f, int device, int index, const void *gid) { return ((int (*)(int, int, const void *))f)(device, index, gid); }
static int vt_event(void *f, int device, int type, int port) { return ((int (*)(int, int, int))f)(device, type, port); }
*/
import "C"

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"unsafe"

	"github.com/stretchr/testify/require"

	"gorail/test/native"
	"gorail/test/native/board"
)

// Events for Lib.Event: values of enum ibv_event_type.
const (
	CQErr       = 0
	DeviceFatal = 8
	PortActive  = 9
	PortErr     = 10
	LIDChange   = 11
	GIDChange   = 18
)

// Lib is one loaded library, with its own switches and counters.
type Lib struct {
	*board.Board
	MayOverrun bool // the test does not poll, so completion queues may overrun
}

var part = native.Part{Name: "libibverbs.so.1", SOName: "libibverbs-imitation.so", Dirs: []string{"test/verbs/lib"}, Exports: "test/verbs/lib/exports.map",
	Include: []string{"test/native"}, Flags: []string{"-Wl,-Bsymbolic"}}

// Build builds and loads the library; each call returns another copy. The test fails at its end if an object is still open, or if a
// call broke a rule of the real library. native.Part says when the test is skipped.
func Build(t testing.TB) *Lib { return build(t, part) }

// BuildOld is Build of a libibverbs older than rdma-core 28: without ibv_reg_mr_iova2.
func BuildOld(t testing.TB) *Lib {
	old := part
	old.Exports, old.Flags = "test/verbs/lib/exports-old.map", []string{"-Wl,-Bsymbolic", "-DVT_OLD"}
	return build(t, old)
}

func build(t testing.TB, part native.Part) *Lib {
	t.Helper()
	l := &Lib{Board: board.Open(t, part.Build(t), "vt")}
	t.Cleanup(func() {
		require.Empty(t, l.Open(), "verbs objects left open")
		for _, b := range strings.Split(strings.TrimSpace(l.Breaches()), "\n") {
			require.True(t, b == "" || l.MayOverrun && strings.HasSuffix(b, "is overrun"), b)
		}
	})
	return l
}

// Fail makes the n-th call from now fail with errno. n = 0 makes no call fail.
func (l *Lib) Fail(call string, nth int, errno syscall.Errno) { l.Board.Fail(call, nth, int(errno)) }

// FailMany makes `times` calls fail, from the n-th call from now on.
func (l *Lib) FailMany(call string, nth, times int, errno syscall.Errno) {
	l.Board.FailMany(call, nth, times, int(errno))
}

// Zero resets the counters of requests, completions, events and polls. Counters above `writes` in lib/switches.h stay.
func (l *Lib) Zero() { C.vt_call(l.Func("zero")) }

// Break moves all queue pairs to the state ERR, which flushes all posted requests.
func (l *Lib) Break() { C.vt_call(l.Func("break")) }

// Open returns the kinds of open objects with their numbers.
func (l *Lib) Open() map[string]int {
	l.T.Helper()
	open := map[string]int{}
	for _, name := range []string{"lists", "contexts", "pds", "mrs", "channels", "cqs", "qps"} {
		if n := l.Count(name); n != 0 {
			open[name] = n
		}
	}
	return open
}

// Event raises an event of a port, or of the device, in every context that has the device open.
func (l *Lib) Event(device, event, port int) {
	l.T.Helper()
	require.Positive(l.T, int(C.vt_event(l.Func("event"), C.int(device), C.int(event), C.int(port))), "no context has device %d open", device)
}

func setGID(l *Lib, device, index int, gid [16]byte) int {
	return int(C.vt_gid(l.Func("gid"), C.int(device), C.int(index), unsafe.Pointer(&gid)))
}

// Peermem loads nvidia_peermem for the GPUs of test/cuda: find is Lib.Peermem of package cuda. nil unloads the module; without it
// GPU memory cannot be registered by address.
func (l *Lib) Peermem(find unsafe.Pointer) { C.vt_peermem(l.Func("peermem"), find) }

// Sys returns a /sys with one GID for each port of each device. For RoCE the GID is an address of the loopback interface.
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

// OnPCI adds a path of the PCI bus ("pci0000:15/0000:15:01.0/...") to a /sys. The device there is RDMA device n; with n < 0 it is
// another PCI function, such as a GPU.
func OnPCI(sys fstest.MapFS, n int, path string) {
	link := "bus/pci/devices/" + path[strings.LastIndex(path, "/")+1:]
	if n >= 0 {
		link = fmt.Sprintf("class/infiniband/hca%d/device", n)
	}
	sys["devices/"+path+"/vendor"] = &fstest.MapFile{Data: []byte("0x10de\n")}
	sys[link] = &fstest.MapFile{Mode: os.ModeSymlink | 0o777, Data: []byte(strings.Repeat("../", strings.Count(link, "/")) + "devices/" + path)}
}
