// Package verbs builds a libibverbs and librdmacm (in one file) for tests: reliable connections within one process, in memory,
// whose calls can be made to fail one by one, and which counts what it is asked. lib/switches.h has all names.
package verbs

/*
#cgo CFLAGS: -O1 -Wall -Wextra -Werror -std=gnu17

static void vt_call(void *f) { ((void (*)(void))f)(); }
static void vt_peermem(void *f, void *find) { ((void (*)(void *))f)(find); }
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
	*board.Board
	MayOverrun bool // the test lets nobody poll: completion queues may run over
}

var part = native.Part{Name: "libibverbs.so.1", SOName: "libibverbs-imitation.so", Dirs: []string{"test/verbs/lib"}, Exports: "test/verbs/lib/exports.map",
	Include: []string{"test/native"}, Flags: []string{"-Wl,-Bsymbolic"}}

// Build makes the library; each call gives another copy. When the test ends no object may be open any more, and nothing may
// have been done that a real library would not have borne. See native.Part for what skips the test.
func Build(t testing.TB) *Lib { return build(t, part) }

// BuildOld is a libibverbs of before rdma-core 28, without ibv_reg_mr_iova2.
func BuildOld(t testing.TB) *Lib {
	old := part
	old.Exports, old.Flags = "test/verbs/lib/exports-old.map", []string{"-Wl,-Bsymbolic", "-DVT_OLD"}
	return build(t, old)
}

func build(t testing.TB, part native.Part) *Lib {
	t.Helper()
	l := &Lib{Board: board.Open(t, part.Build(t), "vt")}
	t.Cleanup(func() {
		require.Empty(t, l.Open(), "left open")
		for _, b := range strings.Split(strings.TrimSpace(l.Breaches()), "\n") {
			require.True(t, b == "" || l.MayOverrun && strings.HasSuffix(b, "is overrun"), b)
		}
	})
	return l
}

// Fail makes the n-th call from now fail with errno; n = 0: none.
func (l *Lib) Fail(call string, nth int, errno syscall.Errno) { l.Board.Fail(call, nth, int(errno)) }

// FailMany makes the n-th call from now fail, and those after it: so many in all.
func (l *Lib) FailMany(call string, nth, times int, errno syscall.Errno) {
	l.Board.FailMany(call, nth, times, int(errno))
}

// Zero starts the counters anew, but for those of open objects.
func (l *Lib) Zero() { C.vt_call(l.Func("zero")) }

// Break takes all queue pairs to the state ERR: everything posted is flushed.
func (l *Lib) Break() { C.vt_call(l.Func("break")) }

// Open is what is open: kind and number.
func (l *Lib) Open() map[string]int {
	l.T.Helper()
	open := map[string]int{}
	for _, name := range []string{"lists", "contexts", "pds", "mrs", "channels", "cqs", "qps", "cm_channels", "cm_ids"} {
		if n := l.Count(name); n != 0 {
			open[name] = n
		}
	}
	return open
}

// Event raises an event of a port, or of the device, at everyone who has it open.
func (l *Lib) Event(device, event, port int) {
	l.T.Helper()
	require.Positive(l.T, int(C.vt_event(l.Func("event"), C.int(device), C.int(event), C.int(port))), "nobody has the device open")
}

// Peermem loads nvidia_peermem for the GPUs of a libcuda of ours (its Lib.Peermem), nil unloads it: by their addresses alone GPUs' memory
// is nothing that can be registered.
func (l *Lib) Peermem(find unsafe.Pointer) { C.vt_peermem(l.Func("peermem"), find) }

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
