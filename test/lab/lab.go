// Package lab makes two network namespaces with shaped wires between them, for tests of the tool between two hosts. The namespaces have no
// names and end with the program and its processes: no lab is left behind, and the machine's own interfaces do not change. It needs root.
package lab

import (
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Lab is two namespaces, each standing for a host.
type Lab struct {
	nodes [2]*node // of the initiator, of the target
}

// node is a network namespace.
type node struct {
	ns netns.NsHandle
	nl *netlink.Handle // sees the interfaces of this namespace only
}

// rail is the name of the i-th rail in both namespaces.
func rail(i int) string { return fmt.Sprint("rail", i) }

// Addr is the target's address on the i-th rail.
func Addr(i int) string { return address(i, 2).String() }

func address(i int, last byte) net.IP { return net.IPv4(10, 79, byte(i), last) }

// New makes a lab of so many rails, each of a rate in bits a second. The caller closes it.
func New(rails int, rate uint64) (*Lab, error) {
	l := &Lab{}
	for i := range l.nodes {
		n, err := newNode()
		if err != nil {
			l.Close()
			return nil, fmt.Errorf("cannot make a network namespace: %w", err)
		}
		l.nodes[i] = n
	}
	for i := range rails {
		if err := l.wire(i, rate); err != nil {
			l.Close()
			return nil, fmt.Errorf("cannot make %s: %w", rail(i), err)
		}
	}
	return l, nil
}

// Close lets the namespaces end once their processes have ended.
func (l *Lab) Close() {
	for _, n := range l.nodes {
		if n != nil {
			n.nl.Close()
			_ = n.ns.Close()
		}
	}
}

func newNode() (*node, error) {
	n := &node{ns: netns.None()}
	err := aside(func() (err error) {
		n.ns, err = netns.New()
		return err
	})
	if err != nil {
		return nil, err
	}
	if n.nl, err = netlink.NewHandleAt(n.ns); err != nil {
		_ = n.ns.Close()
		return nil, err
	}
	lo, err := n.nl.LinkByName("lo")
	if err == nil {
		err = n.nl.LinkSetUp(lo)
	}
	return n, err
}

// aside runs f on a new thread that ends with f. What f changes about its thread affects no other goroutine.
func aside(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// In runs f in the namespace of the initiator, or of the target. Processes that f starts stay there, and see only its interfaces in /sys.
func (l *Lab) In(target bool, f func() error) error {
	n := l.nodes[0]
	if target {
		n = l.nodes[1]
	}
	return aside(func() error {
		if err := netns.Set(n.ns); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("unshare mounts: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("make mounts private: %w", err)
		}
		if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("mount sysfs: %w", err)
		}
		return f()
	})
}

// wire joins the namespaces by a rail: an interface of one name in each, shaped at both ends.
func (l *Lab) wire(i int, rate uint64) error {
	a, b, name := l.nodes[0], l.nodes[1], rail(i)
	err := a.nl.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(b.ns)})
	if err != nil {
		return err
	}
	for k, n := range l.nodes {
		link, err := n.nl.LinkByName(name)
		if err != nil {
			return err
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: address(i, byte(1+k)), Mask: net.CIDRMask(24, 32)}}
		if err := n.nl.AddrAdd(link, addr); err != nil {
			return err
		}
		if err := n.nl.LinkSetUp(link); err != nil {
			return err
		}
		if err := n.shape(link, rate); err != nil {
			return err
		}
	}
	return l.await(name)
}

// shape limits the rate at which an interface sends.
func (n *node) shape(link netlink.Link, rate uint64) error {
	bytes := rate / 8
	return n.nl.QdiscReplace(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       bytes,
		Limit:      uint32(max(bytes/50, 256<<10)),  // 20 ms of queue
		Buffer:     uint32(max(bytes/1000, 64<<10)), // bursts of 1 ms
	})
}

// upLimit is how long the kernel may take to bring an interface up.
const upLimit = 10 * time.Second

// await waits until both ends of a rail carry packets.
func (l *Lab) await(name string) error {
	for end := time.Now().Add(upLimit); ; time.Sleep(time.Millisecond) {
		up := 0
		for _, n := range l.nodes {
			if link, err := n.nl.LinkByName(name); err == nil && link.Attrs().OperState == netlink.OperUp {
				up++
			}
		}
		if up == len(l.nodes) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("not up after %v", upLimit)
		}
	}
}

// Cut takes a rail down at the initiator's end, or up again.
func (l *Lab) Cut(i int, down bool) error {
	n := l.nodes[0]
	link, err := n.nl.LinkByName(rail(i))
	if err != nil {
		return err
	}
	if down {
		return n.nl.LinkSetDown(link)
	}
	return n.nl.LinkSetUp(link)
}

// Sent returns the bytes that a rail has sent from the initiator, or from the target.
func (l *Lab) Sent(i int, target bool) uint64 {
	n := l.nodes[0]
	if target {
		n = l.nodes[1]
	}
	link, err := n.nl.LinkByName(rail(i))
	if err != nil || link.Attrs().Statistics == nil {
		return 0
	}
	return link.Attrs().Statistics.TxBytes
}
