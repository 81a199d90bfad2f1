// Package lab has hosts for tests: network namespaces with wires between them. They have no names and end with their descriptors and their
// processes, so that no test leaves one, and the machine's own interfaces do not change. They need root.
package lab

import (
	"errors"
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
)

// Host is a network namespace that stands for a machine.
type Host struct {
	T    testing.TB
	NS   netns.NsHandle
	NL   *netlink.Handle // sees the interfaces of this namespace only
	boot string          // file that its processes see as the boot id; "": the machine's boot id
}

// upTime is how long the kernel may take to bring an interface up, and the first packets over it.
const upTime = 10 * time.Second

// bootFile has the kernel's boot id.
const bootFile = "/proc/sys/kernel/random/boot_id"

// New makes a namespace with only a loopback interface.
func New(t testing.TB) *Host {
	t.Helper()
	if os.Geteuid() != 0 {
		skip.OrFail(t, errors.New("network namespaces need root"))
	}
	h := &Host{T: t, NS: netns.None()}
	var err error
	h.Aside(func() { h.NS, err = netns.New() })
	if os.IsPermission(err) || err == unix.EPERM {
		skip.OrFail(t, err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.NS.Close() })
	h.NL, err = netlink.NewHandleAt(h.NS)
	require.NoError(t, err)
	t.Cleanup(h.NL.Close)
	require.NoError(t, h.NL.LinkSetUp(h.Link("lo")))
	return h
}

// Reboot sets the boot id that processes see from their start on, as if this were another machine.
func (h *Host) Reboot(id string) {
	h.T.Helper()
	h.boot = filepath.Join(h.T.TempDir(), "boot_id")
	require.NoError(h.T, os.WriteFile(h.boot, []byte(id+"\n"), 0o644))
}

// Aside runs f on a new thread that ends with f. A change that f makes to the thread affects no other goroutine.
func (h *Host) Aside(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
		f()
	}()
	<-done
	if h.T.Failed() { // require in f ends only f's goroutine
		h.T.FailNow()
	}
}

// In runs f on this host. Processes that f starts stay there, and see only this host's interfaces in /sys.
func (h *Host) In(f func()) {
	h.T.Helper()
	h.Aside(func() {
		require.NoError(h.T, netns.Set(h.NS))
		require.NoError(h.T, ownMounts(h.boot))
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

// Link is an interface.
func (h *Host) Link(name string) netlink.Link {
	h.T.Helper()
	l, err := h.NL.LinkByName(name)
	require.NoError(h.T, err)
	return l
}

// Sent is the number of bytes that an interface has sent.
func (h *Host) Sent(name string) uint64 {
	h.T.Helper()
	return h.Link(name).Attrs().Statistics.TxBytes
}

// Cut takes an interface down.
func (h *Host) Cut(name string) { h.T.Helper(); require.NoError(h.T, h.NL.LinkSetDown(h.Link(name))) }

// Restore takes an interface up again.
func (h *Host) Restore(name string) {
	h.T.Helper()
	require.NoError(h.T, h.NL.LinkSetUp(h.Link(name)))
}

// Shape limits the rate at which an interface sends, in Mbit/s. Its queue has 20 ms.
func (h *Host) Shape(name string, mbit uint64) {
	h.T.Helper()
	h.ShapeQueue(name, mbit, max(mbit*1e6/8/50, 256<<10))
}

// ShapeQueue is Shape with a queue of so many bytes.
func (h *Host) ShapeQueue(name string, mbit, queue uint64) {
	h.T.Helper()
	rate := mbit * 1e6 / 8
	burst := max(rate/250, 64<<10) // ticks of 64 ns: 32 ms at 1 Gbit/s, on which tests of slower wires rely
	if mbit > 1000 {
		burst = 62_500 // 4 ms
	}
	require.NoError(h.T, h.NL.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: h.Link(name).Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       rate,
		Limit:      uint32(queue),
		Buffer:     uint32(burst),
	}))
}

// Wire joins two hosts by one interface in each, with the same name and one address each. The interfaces are made in
// the namespaces, so that the machine's interfaces do not change.
func (h *Host) Wire(to *Host, name string, here, there *net.IPNet) {
	h.T.Helper()
	require.NoError(h.T, h.NL.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(to.NS)}))
	h.Up(name, here)
	to.Up(name, there)
	require.True(h.T, eventually(func() bool { return h.Carries(name) && to.Carries(name) }), "interface %s does not come up", name)
}

// WireAs is Wire with a name of its own in each host. It waits for nothing but the carrier.
func (h *Host) WireAs(to *Host, name, there string, hereIP, thereIP *net.IPNet) {
	h.T.Helper()
	require.NoError(h.T, h.NL.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: there, PeerNamespace: netlink.NsFd(to.NS)}))
	h.Up(name, hereIP)
	to.Up(there, thereIP)
	require.True(h.T, eventually(func() bool { return h.Carries(name) && to.Carries(there) }), "interface %s does not come up", name)
}

// RouteFrom sends what comes from an address out over its interface, by a routing table of its own.
func (h *Host) RouteFrom(name string, from net.IP, table int) {
	h.T.Helper()
	link := h.Link(name).Attrs().Index
	net24 := &net.IPNet{IP: from.Mask(net.CIDRMask(24, 32)), Mask: net.CIDRMask(24, 32)}
	require.NoError(h.T, h.NL.RouteAdd(&netlink.Route{LinkIndex: link, Dst: net24, Src: from, Scope: netlink.SCOPE_LINK, Table: table}))
	rule := netlink.NewRule()
	rule.Src, rule.Table = &net.IPNet{IP: from, Mask: net.CIDRMask(32, 32)}, table
	require.NoError(h.T, h.NL.RuleAdd(rule))
}

// Sysctl sets a value below /proc/sys in the host's network namespace.
func (h *Host) Sysctl(name, value string) {
	h.T.Helper()
	h.Aside(func() {
		require.NoError(h.T, netns.Set(h.NS))
		require.NoError(h.T, os.WriteFile("/proc/sys/"+name, []byte(value), 0o644))
	})
}

// Reach waits until a TCP connection over the wire succeeds: the first packets on a new wire may be lost.
func (h *Host) Reach(to *Host, ip net.IP) {
	h.T.Helper()
	var ln net.Listener
	var err error
	to.Aside(func() {
		if err = netns.Set(to.NS); err == nil {
			ln, err = net.Listen("tcp", net.JoinHostPort(ip.String(), "0"))
		}
	})
	require.NoError(h.T, err)
	defer ln.Close()
	require.True(h.T, eventually(func() bool {
		ok := false
		h.Aside(func() {
			if netns.Set(h.NS) != nil {
				return
			}
			if c, err := net.DialTimeout("tcp", ln.Addr().String(), time.Second); err == nil {
				ok = c.Close() == nil
			}
		})
		return ok
	}), "no connection to %s", ip)
}

// Carries says whether the kernel has an interface up, which it has a moment after LinkSetUp.
func (h *Host) Carries(name string) bool {
	h.T.Helper()
	return h.Link(name).Attrs().OperState == netlink.OperUp
}

// Up gives an interface an address and takes it up.
func (h *Host) Up(name string, addr *net.IPNet) {
	h.T.Helper()
	require.NoError(h.T, h.NL.AddrAdd(h.Link(name), &netlink.Addr{IPNet: addr}))
	require.NoError(h.T, h.NL.LinkSetUp(h.Link(name)))
}

// Two makes two hosts with wires of these names between them. The i-th one has the addresses 10.NET.i.1 and 10.NET.i.2.
func Two(t testing.TB, network byte, names ...string) (a, b *Host) {
	t.Helper()
	a, b = New(t), New(t)
	for i, name := range names {
		there := address(network, i, 2)
		a.Wire(b, name, address(network, i, 1), there)
		a.Reach(b, there.IP)
	}
	return a, b
}

// Rails makes two hosts with one wire for each rate in Mbit/s, shaped at both ends: "rail0", "rail1" and so on.
func Rails(t testing.TB, network byte, mbit ...uint64) (a, b *Host) {
	t.Helper()
	var names []string
	for i := range mbit {
		names = append(names, fmt.Sprint("rail", i))
	}
	a, b = Two(t, network, names...)
	for i, m := range mbit {
		a.Shape(names[i], m)
		b.Shape(names[i], m)
	}
	return a, b
}

// Possible tries, in a new namespace, the system calls that a host needs.
func Possible(t testing.TB) (err error) {
	(&Host{T: t}).Aside(func() {
		var ns netns.NsHandle
		if ns, err = netns.New(); err != nil {
			return
		}
		defer ns.Close()
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "try0"}, PeerName: "try1"}
		if err = netlink.LinkAdd(veth); err == nil {
			err = ownMounts("/dev/null")
		}
	})
	return err
}

func address(network byte, i int, last byte) *net.IPNet {
	return &net.IPNet{IP: net.IPv4(10, network, byte(i), last), Mask: net.CIDRMask(24, 32)}
}

func eventually(ok func() bool) bool {
	for end := time.Now().Add(upTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}
