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

// host is a network namespace that stands for a machine. It has no name. It ends with its descriptor and its processes,
// so that no test leaves one.
type host struct {
	t    testing.TB
	ns   netns.NsHandle
	nl   *netlink.Handle // sees the interfaces of this namespace only
	boot string          // file that its processes see as the boot id; "": the machine's boot id
}

// bootFile has the kernel's boot id.
const bootFile = "/proc/sys/kernel/random/boot_id"

// reboot sets the boot id that processes see from their start on, as if this were another machine.
func (h *host) reboot(id string) {
	h.t.Helper()
	h.boot = filepath.Join(h.t.TempDir(), "boot_id")
	require.NoError(h.t, os.WriteFile(h.boot, []byte(id+"\n"), 0o644))
}

// newHost makes a namespace with only a loopback interface.
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

// aside runs f on a new thread that ends with f. A change that f makes to the thread affects no other goroutine.
func (h *host) aside(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
		f()
	}()
	<-done
	if h.t.Failed() { // require in f ends only f's goroutine
		h.t.FailNow()
	}
}

// start makes a process with one agent on this host. The process sees only this host's interfaces in /sys.
func (h *host) start(name string, opts ...option) *worker.Agent {
	h.t.Helper()
	return h.startWith(nil, name, opts...)
}

// startWith is start with environment variables for the process.
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

// ownMounts gives the thread a mount namespace: /sys with the interfaces of its network namespace, and the boot id of a
// file unless boot is "".
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

// sent is the number of bytes that an interface has sent.
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

// shape limits the rate at which an interface sends, in Mbit/s.
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

// wire joins two hosts by one interface in each, with the same name and one address each. The interfaces are made in
// the namespaces, so that the machine's interfaces do not change.
func (h *host) wire(to *host, name string, here, there *net.IPNet) {
	h.t.Helper()
	require.NoError(h.t, h.nl.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(to.ns)}))
	h.up(name, here)
	to.up(name, there)
	require.True(h.t, worker.Eventually(lost, func() bool { return h.carries(name) && to.carries(name) }), "interface %s does not come up", name)
}

// reach waits until a TCP connection over the wire succeeds: the first packets on a new wire may be lost.
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
	require.True(h.t, worker.Eventually(lost, func() bool {
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
	}), "no connection to %s", ip)
}

// carries says whether the kernel has an interface up, which it has a moment after LinkSetUp.
func (h *host) carries(name string) bool {
	h.t.Helper()
	return h.link(name).Attrs().OperState == netlink.OperUp
}

func (h *host) up(name string, addr *net.IPNet) {
	h.t.Helper()
	require.NoError(h.t, h.nl.AddrAdd(h.link(name), &netlink.Addr{IPNet: addr}))
	require.NoError(h.t, h.nl.LinkSetUp(h.link(name)))
}
