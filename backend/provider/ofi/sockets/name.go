// Package sockets reads and changes the state of the process's own TCP sockets. libfabric's tcp family does not expose
// its sockets, so they are found by their addresses.
//
// The descriptors belong to libfabric. A caller either holds the rail's lock, or accepts that a descriptor may have
// been closed and reused.
package sockets

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Addr reads the IP address in a struct sockaddr_in or sockaddr_in6; the zero Addr for anything else. Use it only for
// addresses known to have that form, because other fabrics' addresses may look alike.
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

// Text formats a struct sockaddr_in or sockaddr_in6; "" for anything else.
func Text(b []byte) string {
	n, ok := NameOf(b)
	if !ok {
		return ""
	}
	return n.At.String()
}

// Name is the address of one end of a connection. Names are comparable.
type Name struct {
	At    netip.AddrPort
	Scope uint32 // of IPv6 addresses
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

// Host returns the name without its port.
func (n Name) Host() Name {
	n.At = netip.AddrPortFrom(n.At.Addr(), 0)
	return n
}

// Own implements getsockname, Peer getpeername; false unless fd is an IP socket. They avoid the allocations and further
// calls of unix.Getsockname, because callers look at thousands of descriptors.
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
