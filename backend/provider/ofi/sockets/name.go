// Package sockets is what Linux says of the process's own TCP sockets, and what it lets us do to them. libfabric's tcp family keeps its sockets
// to itself: they are found here by their addresses.
//
// A descriptor is libfabric's. Who looks at one holds the rail's lock, or bears with one that has been closed and is another's by now.
package sockets

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Addr reads the IP address out of a struct sockaddr_in or sockaddr_in6; anything else gives the zero Addr. Only for
// addresses that are known to be of that form: other fabrics' may look like it.
func Addr(b []byte) netip.Addr {
	if len(b) < 2 {
		return netip.Addr{}
	}
	switch family := binary.NativeEndian.Uint16(b); {
	case family == unix.AF_INET && len(b) >= 8:
		return netip.AddrFrom4([4]byte(b[4:8]))
	case family == unix.AF_INET6 && len(b) >= 24:
		return netip.AddrFrom16([16]byte(b[8:24]))
	}
	return netip.Addr{}
}

// Text is the text of a struct sockaddr_in or sockaddr_in6; "" of anything else.
func Text(b []byte) string {
	n, ok := NameOf(b)
	if !ok {
		return ""
	}
	return n.At.String()
}

// Name is what one end of a connection is bound to. Comparable.
type Name struct {
	At    netip.AddrPort
	Scope uint32 // of IPv6
}

// NameOf reads a struct sockaddr_in or sockaddr_in6.
func NameOf(b []byte) (Name, bool) {
	a := Addr(b)
	if !a.IsValid() {
		return Name{}, false
	}
	n := Name{At: netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[2:]))}
	if a.Is6() && len(b) >= unix.SizeofSockaddrInet6 {
		n.Scope = binary.NativeEndian.Uint32(b[24:])
	}
	return n, true
}

// Host is the name without its port.
func (n Name) Host() Name {
	n.At = netip.AddrPortFrom(n.At.Addr(), 0)
	return n
}

// Own implements getsockname, Peer getpeername; false unless it is an IP socket. unix.Getsockname allocates, and asks more:
// these look at thousands.
func Own(fd int) (Name, bool)  { return askName(unix.SYS_GETSOCKNAME, fd) }
func Peer(fd int) (Name, bool) { return askName(unix.SYS_GETPEERNAME, fd) }

func askName(call uintptr, fd int) (Name, bool) {
	var raw [unix.SizeofSockaddrAny]byte
	n := uint32(len(raw))
	_, _, e := unix.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&n)))
	if e != 0 {
		return Name{}, false
	}
	return NameOf(raw[:min(int(n), len(raw))])
}
