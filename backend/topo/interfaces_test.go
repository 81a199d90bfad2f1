//go:build linux

package topo

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// inSpace runs f on a thread in a network namespace of its own.
func inSpace(t *testing.T, f func(h *netlink.Handle)) {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "network namespaces need root")
	}
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with its namespace
		err := errors.New("ended")
		defer func() { ended <- err }()
		var ns netns.NsHandle
		if ns, err = netns.New(); err != nil {
			return
		}
		defer ns.Close()
		h, e := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err = e; err == nil {
			defer h.Close()
			f(h)
		}
	}()
	if err := <-ended; err != nil {
		skip(t, "cannot make a network namespace: ", err)
	}
}

// addPair adds two interfaces, the first of them with addresses and, but for its carrier, up.
func addPair(h *netlink.Handle, name string, addrs ...string) error {
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
	if err := h.LinkAdd(l); err != nil {
		return err
	}
	for _, a := range addrs {
		p, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if err := h.AddrAdd(l, p); err != nil {
			return err
		}
	}
	return h.LinkSetUp(l)
}

// The list is the one of Go's own library, and costs two dumps however many interfaces there are.
func TestInterfaces(t *testing.T) {
	inSpace(t, func(h *netlink.Handle) {
		const n = 150
		for i := range n {
			if err := addPair(h, fmt.Sprintf("d%d", i), fmt.Sprintf("10.%d.%d.1/24", i/200, i%200), fmt.Sprintf("2001:db8:%x::1/64", i)); err != nil {
				t.Error(err)
				return
			}
		}
		before := Dumps()
		list, err := Interfaces()
		if err != nil || Dumps()-before > 2*listTries {
			t.Errorf("%d dumps, %v", Dumps()-before, err)
		}
		all, err := net.Interfaces()
		if err != nil || len(all) != 2*n+1 || len(list) != len(all) {
			t.Errorf("%d interfaces, %d for Go, %v", len(list), len(all), err)
			return
		}
		for i, want := range all {
			have := list[i]
			if want.Name != have.Name || want.Index != have.Index || have.Loopback != (want.Flags&net.FlagLoopback != 0) || have.Up {
				t.Errorf("%+v, for Go %+v", have, want)
			}
			addrs, err := want.Addrs()
			if err != nil {
				t.Error(err)
			}
			if have.Name[0] == 'd' && have.Name[len(have.Name)-1] != 'p' && len(addrs) < 2 {
				t.Errorf("%s has only %v", have.Name, addrs)
			}
			for _, a := range addrs {
				if p := netip.MustParsePrefix(a.String()); !slices.Contains(have.Addrs, p) {
					t.Errorf("%s lacks %s: %v", have.Name, a, have.Addrs)
				}
			}
			if len(have.Addrs) != len(addrs) {
				t.Errorf("%s: %v, for Go %v", have.Name, have.Addrs, addrs)
			}
		}
	})
}

// The engines of a process share a list, and a change is seen at once.
func TestInterfacesShared(t *testing.T) {
	inSpace(t, func(h *netlink.Handle) {
		s := &snapshot{}
		defer func() {
			s.mu.Lock()
			s.drop()
			s.mu.Unlock()
		}()
		names := func() (all []string) {
			list, err := s.get()
			if err != nil {
				t.Error(err)
			}
			for _, i := range list {
				all = append(all, fmt.Sprint(i.Name, i.Addrs))
			}
			return all
		}
		names()
		for i := range 20 {
			if err := addPair(h, fmt.Sprintf("d%d", i), fmt.Sprintf("10.0.%d.1/24", i)); err != nil {
				t.Error(err)
				return
			}
			want := fmt.Sprintf("d%d[10.0.%d.1/24]", i, i)
			if all := names(); len(all) != 2*i+3 || !slices.Contains(all, want) {
				t.Errorf("%v lacks %s", all, want)
			}
		}
		for end := time.Now().Add(patience); ; { // the kernel still speaks of the last: IPv6 addresses, states
			lists := s.made
			for range 100 {
				names()
			}
			if s.made-lists <= 1 {
				break
			}
			if time.Now().After(end) {
				t.Errorf("100 calls made %d lists", s.made-lists)
				return
			}
		}
		ns, err := netns.New() // of the same thread: another list
		if err != nil {
			t.Error(err)
			return
		}
		defer ns.Close()
		if all := names(); len(all) != 1 {
			t.Errorf("in another namespace: %v", all)
		}
	})
}

// Addresses that go by themselves come last.
func TestAddressOrder(t *testing.T) {
	addr := func(flags uint32, a string) []byte {
		m := append([]byte{unix.AF_INET6, 64, byte(flags), 0, 3, 0, 0, 0}, 20, 0, unix.IFA_ADDRESS, 0)
		ip := netip.MustParseAddr(a).As16()
		m = append(m, ip[:]...)
		return append(m, 8, 0, unix.IFA_FLAGS, 0, byte(flags), byte(flags>>8), byte(flags>>16), byte(flags>>24))
	}
	link := append(make([]byte, unix.SizeofIfInfomsg), 7, 0, unix.IFLA_IFNAME, 0, 'e', '0', 0)
	link[4] = 3
	list := join([][]byte{link, {1, 2}}, [][]byte{addr(unix.IFA_F_TENTATIVE, "2001:db8::4"), addr(unix.IFA_F_DEPRECATED|unix.IFA_F_TEMPORARY, "2001:db8::3"),
		addr(unix.IFA_F_TEMPORARY, "2001:db8::2"), addr(0, "2001:db8::1"), addr(unix.IFA_F_MANAGETEMPADDR, "2001:db8::11"), {1}, nil})
	require.Len(t, list, 1)
	require.Equal(t, "[2001:db8::1/64 2001:db8::11/64 2001:db8::2/64 2001:db8::3/64 2001:db8::4/64]", fmt.Sprint(list[0].Addrs))
}

// Messages that are cut short anywhere are no harm.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 3, 0, 'e', '0', 0}, []byte{2, 24, 0, 0, 1, 0, 0, 0, 8, 0, 2, 0, 10, 0, 0, 1})
	f.Fuzz(func(_ *testing.T, link, addr []byte) { join([][]byte{link}, [][]byte{addr}) })
}
