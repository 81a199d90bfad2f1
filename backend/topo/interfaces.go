//go:build linux

package topo

import (
	"bytes"
	"cmp"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Interface is a network interface of this network namespace, as the kernel reports it.
type Interface struct {
	Name     string
	Index    int  // the kernel's number; a name may come back with another one
	Up       bool // set up, and the link below is up
	Loopback bool
	Addrs    []netip.Prefix // those that stay before temporary, deprecated and tentative ones
}

// Interfaces lists the interfaces of the calling thread's network namespace. It costs one dump of links and one of addresses. While nothing
// changes, calls within a second share them, so that the engines of a process do. The caller changes nothing in the list. Implements getifaddrs.
func Interfaces() ([]Interface, error) { return shared.get() }

// Addrs returns the addresses of an interface; nil if there is none of that name.
func Addrs(list []Interface, name string) []netip.Prefix {
	if i := slices.IndexFunc(list, func(i Interface) bool { return i.Name == name }); i >= 0 {
		return list[i].Addrs
	}
	return nil
}

// Dumps counts the dumps that this process has asked the kernel for: each takes time in proportion to all interfaces, of which a host of
// containers has a thousand.
func Dumps() uint64 { return dumps.Load() }

var (
	shared snapshot
	dumps  atomic.Uint64
)

// snapshotKept is how long a list is kept for other engines. Those of one process start together.
const snapshotKept = time.Second

// snapshot is the last list. Its socket subscribed to all changes before the list was made: while no message waits there, the list is true.
type snapshot struct {
	mu      sync.Mutex
	space   uint64 // inode of the network namespace
	changes *nl.NetlinkSocket
	list    []Interface
	made    uint64 // so many lists
}

func (s *snapshot) get() ([]Interface, error) {
	runtime.LockOSThread() // a namespace is a thread's
	defer runtime.UnlockOSThread()
	s.mu.Lock()
	defer s.mu.Unlock()
	space := threadSpace()
	if s.changes != nil && space != 0 && space == s.space && silent(s.changes) {
		return s.list, nil
	}
	s.drop()
	changes, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return nil, err
	}
	list, err := listAll()
	if err != nil {
		changes.Close()
		return nil, err
	}
	s.space, s.changes, s.list = space, changes, list
	s.made++
	made := s.made
	time.AfterFunc(snapshotKept, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.made == made {
			s.drop()
		}
	})
	return list, nil
}

// forget lets the next get ask the kernel: the caller knows of a change.
func (s *snapshot) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

// drop is called with mu held.
func (s *snapshot) drop() {
	if s.changes != nil {
		s.changes.Close()
	}
	s.changes, s.list = nil, nil
}

// threadSpace is the calling thread's network namespace; 0: unknown.
func threadSpace() uint64 { return spaceOf("/proc/thread-self/ns/net") }

// NetNS is the process's network namespace; 0: unknown.
func NetNS() uint64 { return spaceOf("/proc/self/ns/net") }

func spaceOf(path string) uint64 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return st.Ino
}

// silent reports that no message and no error waits.
func silent(s *nl.NetlinkSocket) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(s.GetFd()), Events: unix.POLLIN}}, 0)
	return n == 0 && err == nil
}

// listTries bounds dumps that changes interrupt. The last may lack what changed meanwhile: the messages about it wait, and the next call asks again.
const listTries = 5

func listAll() (list []Interface, err error) {
	d, err := newDumper()
	if err != nil {
		return nil, err
	}
	defer d.close()
	var links, addrs [][]byte
	for range listTries {
		if links, err = d.links(); err == nil {
			addrs, err = d.addrs()
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	return join(links, addrs), nil
}

// join puts addresses to their links.
func join(links, addrs [][]byte) (list []Interface) {
	at := make(map[int]int, len(links))
	for _, m := range links {
		if l, ok := parseLink(m); ok {
			at[l.index] = len(list)
			list = append(list, Interface{Name: l.name, Index: l.index, Up: l.up, Loopback: l.loopback})
		}
	}
	ranks := make(map[int][]int)
	for _, m := range addrs {
		index, p, rank, ok := parseAddr(m)
		i, known := at[index]
		if !ok || !known {
			continue
		}
		place, _ := slices.BinarySearchFunc(ranks[i], rank, func(have, new int) int { return cmp.Or(cmp.Compare(have, new), -1) }) // behind its equals
		ranks[i] = slices.Insert(ranks[i], place, rank)
		list[i].Addrs = slices.Insert(list[i].Addrs, place, p)
	}
	return list
}

// link is what a message says of a link.
type link struct {
	index    int
	name     string
	up       bool
	loopback bool
}

// parseLink parses a message RTM_NEWLINK. It takes no more of its hundred attributes than we need.
func parseLink(m []byte) (l link, ok bool) {
	if len(m) < unix.SizeofIfInfomsg {
		return l, false
	}
	info := nl.DeserializeIfInfomsg(m)
	const up = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP // RUNNING: the state is up or unknown
	l = link{index: int(info.Index), up: info.Flags&up == up, loopback: info.Flags&unix.IFF_LOOPBACK != 0}
	for kind, value := range attributes(m[unix.SizeofIfInfomsg:]) {
		if kind == unix.IFLA_IFNAME {
			l.name = string(bytes.TrimRight(value, "\x00"))
			return l, true
		}
	}
	return l, true
}

// Ranks of addresses: how long they may be expected to stay.
const (
	staying = iota
	temporary
	deprecated
	tentative
)

// parseAddr parses a message RTM_NEWADDR.
func parseAddr(m []byte) (index int, p netip.Prefix, rank int, ok bool) {
	if len(m) < unix.SizeofIfAddrmsg {
		return 0, p, 0, false
	}
	msg := nl.DeserializeIfAddrmsg(m)
	flags := uint32(msg.Flags)
	var addr, local []byte
	for kind, value := range attributes(m[unix.SizeofIfAddrmsg:]) {
		switch {
		case kind == unix.IFA_ADDRESS:
			addr = value
		case kind == unix.IFA_LOCAL: // of a point-to-point link, whose IFA_ADDRESS is the other end
			local = value
		case kind == unix.IFA_FLAGS && len(value) == 4:
			flags = nl.NativeEndian().Uint32(value)
		}
	}
	if local == nil {
		local = addr
	}
	a, ok := netip.AddrFromSlice(local)
	if !ok {
		return 0, p, 0, false
	}
	switch {
	case flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 && flags&unix.IFA_F_OPTIMISTIC == 0:
		rank = tentative
	case flags&unix.IFA_F_DEPRECATED != 0:
		rank = deprecated
	case flags&unix.IFA_F_TEMPORARY != 0 && a.Is6(): // IFA_F_SECONDARY of IPv4 is the same bit
		rank = temporary
	}
	p = netip.PrefixFrom(a, int(msg.Prefixlen))
	return int(msg.Index), p, rank, p.IsValid()
}

// typeMask leaves out NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const typeMask = 0x3fff

// attributes yields the attributes of a message until a malformed one.
func attributes(b []byte) func(func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			n, kind := int(nl.NativeEndian().Uint16(b)), nl.NativeEndian().Uint16(b[2:])
			if n < unix.SizeofRtAttr || n > len(b) || !yield(kind&typeMask, b[unix.SizeofRtAttr:n]) {
				return
			}
			b = b[min(len(b), (n+3)&^3):]
		}
	}
}

// dumper has a socket of its own for dumps.
type dumper struct{ sockets map[int]*nl.SocketHandle }

func newDumper() (*dumper, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE) // to nothing
	if err != nil {
		return nil, err
	}
	if err := s.SetReceiveTimeout(&unix.Timeval{Sec: 60}); err != nil {
		s.Close()
		return nil, err
	}
	return &dumper{map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}}, nil
}

func (d *dumper) close() { d.sockets[unix.NETLINK_ROUTE].Close() }

// links asks for all links, without statistics: those are the larger half of an answer. The error ErrDumpInterrupted comes with a list.
func (d *dumper) links() ([][]byte, error) {
	const skipStats = 1 << 3 // RTEXT_FILTER_SKIP_STATS
	return d.dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, nl.NewIfInfomsg(unix.AF_UNSPEC), nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
}

func (d *dumper) addrs() ([][]byte, error) {
	return d.dump(unix.RTM_GETADDR, unix.RTM_NEWADDR, nl.NewIfAddrmsg(unix.AF_UNSPEC))
}

func (d *dumper) dump(ask int, answer uint16, parts ...nl.NetlinkRequestData) ([][]byte, error) {
	dumps.Add(1)
	req := nl.NewNetlinkRequest(ask, unix.NLM_F_DUMP)
	req.Sockets = d.sockets
	for _, p := range parts {
		req.AddData(p)
	}
	return req.Execute(unix.NETLINK_ROUTE, answer)
}
