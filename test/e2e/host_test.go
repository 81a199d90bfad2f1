package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"gorail/test/skip"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// host is a network namespace that stands for a machine. It has no name and lives as long as its descriptor and the
// processes in it, so that nothing is left behind, however the test ends.
type host struct {
	t    testing.TB
	ns   netns.NsHandle
	nl   *netlink.Handle // for its interfaces, and no other's
	boot string          // file that its processes see as the boot id; "": the machine's own
}

// bootFile is where the kernel tells the boot id.
const bootFile = "/proc/sys/kernel/random/boot_id"

// reboot gives the processes that are started from now on another boot id, as on another machine.
func (h *host) reboot(id string) {
	h.t.Helper()
	h.boot = filepath.Join(h.t.TempDir(), "boot_id")
	require.NoError(h.t, os.WriteFile(h.boot, []byte(id+"\n"), 0o644))
}

// newHost makes a namespace with nothing but a loopback interface.
func newHost(t testing.TB) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		skip.OrFail(t, errNotRoot)
	}
	h := &host{t: t, ns: netns.None()}
	var err error
	h.aside(func() { h.ns, err = netns.New() })
	if os.IsPermission(err) || err == unix.EPERM {
		skip.OrFail(t, err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.ns.Close() })
	h.nl, err = netlink.NewHandleAt(h.ns)
	require.NoError(t, err)
	t.Cleanup(h.nl.Close)
	require.NoError(t, h.nl.LinkSetUp(h.link("lo")))
	return h
}

// aside runs f on a thread of its own, which ends with it: what f does to the thread concerns nobody else.
func (h *host) aside(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good
		f()
	}()
	<-done
	if h.t.Failed() { // f may have ended its goroutine
		h.t.FailNow()
	}
}

// start makes a process with one agent on this host. It sees the host's interfaces in /sys, too.
func (h *host) start(name string, opts ...option) *worker.Agent {
	h.t.Helper()
	return h.startWith(nil, name, opts...)
}

// startWith gives the process environment variables of its own.
func (h *host) startWith(setenv []string, name string, opts ...option) *worker.Agent {
	h.t.Helper()
	env := testenv.Need(h.t)
	return agent(h.worker(worker.Options{Env: env, Setenv: setenv}), env, name, opts...)
}

// worker makes a process on this host.
func (h *host) worker(o worker.Options) (w *worker.Worker) {
	h.t.Helper()
	h.in(func() { w = worker.Start(h.t, o) })
	return w
}

// in runs f on this host. Processes that f starts stay there.
func (h *host) in(f func()) {
	h.t.Helper()
	h.aside(func() {
		require.NoError(h.t, netns.Set(h.ns))
		require.NoError(h.t, ownMounts(h.boot))
		f()
	})
}

// ownMounts gives the thread mounts of its own: /sys with the interfaces of its network namespace, and another boot id if wanted.
func ownMounts(boot string) error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare mounts: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	if boot != "" {
		if err := unix.Mount(boot, bootFile, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", bootFile, err)
		}
	}
	return nil
}

func (h *host) link(name string) netlink.Link {
	h.t.Helper()
	l, err := h.nl.LinkByName(name)
	require.NoError(h.t, err)
	return l
}

// sent is how many bytes have left through an interface.
func (h *host) sent(name string) uint64 {
	h.t.Helper()
	return h.link(name).Attrs().Statistics.TxBytes
}

// cut takes an interface down.
func (h *host) cut(name string) { h.t.Helper(); require.NoError(h.t, h.nl.LinkSetDown(h.link(name))) }

// restore takes an interface up again.
func (h *host) restore(name string) {
	h.t.Helper()
	require.NoError(h.t, h.nl.LinkSetUp(h.link(name)))
}

// shape limits what leaves through an interface, in Mbit/s.
func (h *host) shape(name string, mbit uint64) {
	h.t.Helper()
	rate := mbit * 1e6 / 8
	require.NoError(h.t, h.nl.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: h.link(name).Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate,
		Limit:      uint32(max(rate/50, 256<<10)), // 20 ms of queue
		Buffer:     uint32(max(rate/250, 64<<10)), // bursts of 4 ms
	}))
}

// wire joins two hosts: an interface of the same name in both, with an address each. It is born in the namespace, so
// that the machine's own interfaces are never touched.
func (h *host) wire(to *host, name string, here, there *net.IPNet) {
	h.t.Helper()
	require.NoError(h.t, h.nl.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(to.ns)}))
	h.up(name, here)
	to.up(name, there)
	require.True(h.t, eventually(lost, func() bool { return h.carries(name) && to.carries(name) }), "%s does not come up", name)
}

// reach waits until a connection over the wire comes about: the first packets after it came up may be lost.
func (h *host) reach(to *host, ip net.IP) {
	h.t.Helper()
	var ln net.Listener
	var err error
	to.aside(func() {
		if err = netns.Set(to.ns); err == nil {
			ln, err = net.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
		}
	})
	require.NoError(h.t, err)
	defer ln.Close()
	require.True(h.t, eventually(lost, func() bool {
		ok := false
		h.aside(func() {
			if netns.Set(h.ns) != nil {
				return
			}
			if c, err := net.DialTimeout("tcp", ln.Addr().String(), time.Second); err == nil {
				ok = c.Close() == nil
			}
		})
		return ok
	}), "nothing comes through to %s", ip)
}

// carries says that an interface is up; the kernel takes a moment.
func (h *host) carries(name string) bool {
	h.t.Helper()
	return h.link(name).Attrs().OperState == netlink.OperUp
}

func (h *host) up(name string, addr *net.IPNet) {
	h.t.Helper()
	require.NoError(h.t, h.nl.AddrAdd(h.link(name), &netlink.Addr{IPNet: addr}))
	require.NoError(h.t, h.nl.LinkSetUp(h.link(name)))
}
