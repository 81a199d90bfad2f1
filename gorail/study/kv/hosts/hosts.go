// Package hosts makes hosts for a study: network namespaces, joined by one bridge for each rail. They have no names and end with their
// descriptors and processes, so that the machine's own interfaces do not change. Making them needs root.
package hosts

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Rails is the number of interfaces of a host: rail0, rail1.
const Rails = 2

// logRoom is the size of the file system for a host's logs.
const logRoom = "1m"

// meeting is where engines of a host meet. On this machine, sockets of engines under another boot id would stay for ever. Each host has its own, but
// not all of /run: programs, libraries and the study's files may be there.
const meeting = "/run/gorail"

// upTime is how long the kernel may take to bring all interfaces up.
const upTime = 10 * time.Second

// Net is hosts on one network.
type Net struct {
	Hosts []*Host
	hub   *Host
}

// Host is a network namespace that stands for a machine. Its processes see another boot id and other interfaces.
type Host struct {
	number int
	addrs  [Rails]int // the last byte of each rail's address
	ns     netns.NsHandle
	nl     *netlink.Handle
	hub    *netlink.Handle // of the network namespace of the bridges
	boot   string          // the file that its processes see as the boot id
	logs   string          // the folder for logs: a file system of its own, which only its processes see
	met    string          // what its processes see as meeting
}

// New makes n hosts. Files go below dir. The error says why this machine has no such hosts.
func New(n int, dir string) (*Net, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces need root")
	}
	w := &Net{}
	if err := w.make(n, dir); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (w *Net) make(n int, dir string) (err error) {
	if w.hub, err = newHost(0, dir); err != nil {
		return err
	}
	for r := range Rails {
		if err := w.hub.nl.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge(r)}}); err != nil {
			return fmt.Errorf("bridge: %w", err)
		}
		if err := w.hub.up(bridge(r)); err != nil {
			return err
		}
	}
	for i := range n {
		h, err := newHost(i+1, dir)
		if err != nil {
			return err
		}
		w.Hosts = append(w.Hosts, h)
		for r := range Rails {
			if err := w.join(h, r); err != nil {
				return fmt.Errorf("host %d, rail%d: %w", i, r, err)
			}
		}
	}
	for end := time.Now().Add(upTime); ; time.Sleep(time.Millisecond) {
		if w.carries() {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("interfaces of network namespaces are not up after %v", upTime)
		}
	}
}

func bridge(r int) string { return fmt.Sprint("br", r) }
func rail(r int) string   { return fmt.Sprint("rail", r) }

func newHost(number int, dir string) (h *Host, err error) {
	h = &Host{number: number, ns: netns.None(), boot: filepath.Join(dir, fmt.Sprint("boot-", number)), logs: filepath.Join(dir, fmt.Sprint("logs-", number)), met: filepath.Join(dir, fmt.Sprint("met-", number))}
	for r := range h.addrs {
		h.addrs[r] = number
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id)
	text := fmt.Sprintf("%x-%x-%x-%x-%x\n", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	if err := errors.Join(os.WriteFile(h.boot, []byte(text), 0o644), os.MkdirAll(h.logs, 0o755), os.MkdirAll(h.met, 0o755), os.MkdirAll(meeting, 0o700)); err != nil {
		return nil, err
	}
	aside(func() { h.ns, err = netns.New() })
	if err != nil {
		return nil, fmt.Errorf("a network namespace: %w", err)
	}
	if h.nl, err = netlink.NewHandleAt(h.ns); err == nil {
		err = h.up("lo")
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// join gives a host a rail: an interface there, and its other end in a bridge.
func (w *Net) join(h *Host, r int) error {
	h.hub = w.hub.nl
	name := h.port(r)
	if err := w.hub.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: rail(r), PeerNamespace: netlink.NsFd(h.ns)}); err != nil {
		return fmt.Errorf("veth: %w", err)
	}
	port, err := w.hub.nl.LinkByName(name)
	if err != nil {
		return err
	}
	b, err := w.hub.nl.LinkByName(bridge(r))
	if err != nil {
		return err
	}
	if err := w.hub.nl.LinkSetMaster(port, b); err != nil {
		return err
	}
	l, err := h.nl.LinkByName(rail(r))
	if err != nil {
		return err
	}
	return errors.Join(h.nl.AddrAdd(l, h.addr(r)), h.up(rail(r)), w.hub.up(name))
}

// port is the name of the bridge's end of a rail.
func (h *Host) port(r int) string { return fmt.Sprintf("h%dr%d", h.number, r) }

func (h *Host) addr(r int) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 61, byte(r), byte(h.addrs[r])), Mask: net.CIDRMask(24, 32)}}
}

func (h *Host) up(name string) error {
	l, err := h.nl.LinkByName(name)
	if err != nil {
		return err
	}
	return h.nl.LinkSetUp(l)
}

// carries says whether all rails are up.
func (w *Net) carries() bool {
	for _, h := range w.Hosts {
		for r := range Rails {
			if l, err := h.nl.LinkByName(rail(r)); err != nil || l.Attrs().OperState != netlink.OperUp {
				return false
			}
		}
	}
	return true
}

// Close ends the namespaces; processes there keep theirs.
func (w *Net) Close() {
	for _, h := range w.Hosts {
		h.close()
	}
	if w.hub != nil {
		w.hub.close()
	}
}

func (h *Host) close() {
	if h.nl != nil {
		h.nl.Close()
	}
	_ = h.ns.Close()
}

// aside runs f on a thread that ends with f.
func aside(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // without an unlock
		f()
	}()
	<-done
}

// In runs f on the host: processes that f starts live there.
func (h *Host) In(f func() error) (err error) {
	aside(func() {
		if err = netns.Set(h.ns); err != nil {
			return
		}
		if err = h.mounts(); err == nil {
			err = f()
		}
	})
	return err
}

// mounts gives the thread /sys of its network namespace, the host's own meeting, a boot id, and a small file system for logs.
func (h *Host) mounts() error {
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount sysfs: %w", err)
	}
	if err := unix.Mount("tmpfs", h.logs, "tmpfs", 0, "size="+logRoom); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	if err := unix.Mount(h.met, meeting, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", meeting, err)
	}
	if err := unix.Mount(h.boot, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind the boot id: %w", err)
	}
	return nil
}

// Logs is the folder for logs, as its processes see it.
func (h *Host) Logs() string { return h.logs }

// Rail takes an interface down, or up again.
func (h *Host) Rail(r int, up bool) error {
	if up {
		return h.up(rail(r))
	}
	l, err := h.nl.LinkByName(rail(r))
	if err != nil {
		return err
	}
	return h.nl.LinkSetDown(l)
}

// Readdress replaces the address of a rail by one that no host had.
func (h *Host) Readdress(r int) error {
	l, err := h.nl.LinkByName(rail(r))
	if err != nil {
		return err
	}
	old := h.addr(r)
	if h.addrs[r] += 60; h.addrs[r] > 254 {
		return errors.New("no more addresses")
	}
	return errors.Join(h.nl.AddrDel(l, old), h.nl.AddrAdd(l, h.addr(r)))
}
