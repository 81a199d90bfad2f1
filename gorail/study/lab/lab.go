// Package lab makes two network namespaces with shaped wires between them, so that everyone can see rails work. The namespaces have no
// names and end with the program and its processes: no lab is left behind, and the machine's own interfaces do not change. It needs root.
package lab

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"gorail/gorail/side"
)

// Lab is two namespaces, each standing for a host.
type Lab struct {
	Spec  Spec
	nodes [2]*node // of the initiator, of the target
}

// node is a network namespace.
type node struct {
	ns netns.NsHandle
	nl *netlink.Handle // sees the interfaces of this namespace only
}

// Rail is the name of the i-th rail in both namespaces.
func Rail(i int) string { return fmt.Sprint("rail", i) }

// Addr is the target's address on the i-th rail.
func Addr(i int) string { return address(i, 2).String() }

func address(i int, last byte) net.IP { return net.IPv4(10, 79, byte(i), last) }

// New makes a lab. The caller closes it.
func New(s Spec) (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a lab is made of network namespaces, which need root: run the study with sudo, or without --lab")
	}
	l := &Lab{Spec: s}
	for i := range l.nodes {
		n, err := newNode()
		if err != nil {
			l.Close()
			return nil, fmt.Errorf("cannot make a network namespace: %w (in a container it needs CAP_SYS_ADMIN and CAP_NET_ADMIN)", err)
		}
		l.nodes[i] = n
	}
	for i := range s.Rails {
		if err := l.wire(i); err != nil {
			l.Close()
			return nil, fmt.Errorf("cannot make %s: %w", Rail(i), err)
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

// Spawn starts a process of a benchmark in a namespace.
func (l *Lab) Spawn(target bool) (s *side.Side, err error) {
	err = l.In(target, func() (err error) {
		s, err = side.Spawn()
		return err
	})
	return s, err
}

// wire joins the namespaces by a rail: an interface of one name in each, shaped at both ends.
func (l *Lab) wire(i int) error {
	a, b, name := l.nodes[0], l.nodes[1], Rail(i)
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
		if err := n.shape(link, l.Spec.Rate(i), l.Spec.Delay); err != nil {
			return err
		}
	}
	return l.await(name)
}

// shape limits the rate at which an interface sends, and delays what it sends.
func (n *node) shape(link netlink.Link, rate uint64, delay time.Duration) error {
	at := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	bytes := rate / 8
	if delay > 0 {
		inFlight := max(1000, uint32(float64(bytes)*delay.Seconds()/1000))
		wait := netlink.NewNetem(at, netlink.NetemQdiscAttrs{Latency: uint32(delay.Microseconds()), Limit: 4 * inFlight})
		if err := n.nl.QdiscReplace(wait); err != nil {
			return fmt.Errorf("netem: %w (the kernel may lack the module sch_netem)", err)
		}
		at.Parent, at.Handle = netlink.MakeHandle(1, 1), netlink.MakeHandle(2, 0)
	}
	err := n.nl.QdiscReplace(&netlink.Tbf{QdiscAttrs: at, Rate: bytes,
		Limit:  uint32(max(bytes/50, 256<<10)),  // 20 ms of queue
		Buffer: uint32(max(bytes/1000, 64<<10)), // bursts of 1 ms
	})
	if err != nil {
		return fmt.Errorf("tbf: %w (the kernel may lack the module sch_tbf)", err)
	}
	return nil
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
	link, err := n.nl.LinkByName(Rail(i))
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
	link, err := n.nl.LinkByName(Rail(i))
	if err != nil || link.Attrs().Statistics == nil {
		return 0
	}
	return link.Attrs().Statistics.TxBytes
}
