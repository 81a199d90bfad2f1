package ofi

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sockaddr reads the IP address out of a struct sockaddr_in or sockaddr_in6; anything else gives the zero Addr. Only for
// addresses that are known to be of that form: other fabrics' may look like it.
func sockaddr(b []byte) netip.Addr {
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

// socket is the text of a struct sockaddr_in or sockaddr_in6; "" of anything else.
func socket(b []byte) string {
	n, ok := nameOf(b)
	if !ok {
		return ""
	}
	return n.at.String()
}

// sockName is what one end of a connection is bound to. Comparable.
type sockName struct {
	at    netip.AddrPort
	scope uint32 // of IPv6
}

// nameOf reads a struct sockaddr_in or sockaddr_in6.
func nameOf(b []byte) (sockName, bool) {
	a := sockaddr(b)
	if !a.IsValid() {
		return sockName{}, false
	}
	n := sockName{at: netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[2:]))}
	if a.Is6() && len(b) >= unix.SizeofSockaddrInet6 {
		n.scope = binary.NativeEndian.Uint32(b[24:])
	}
	return n, true
}

// host is the name without its port.
func (n sockName) host() sockName {
	n.at = netip.AddrPortFrom(n.at.Addr(), 0)
	return n
}

// ownName implements getsockname, peerName getpeername; false unless it is an IP socket. unix.Getsockname allocates, and asks more:
// these look at thousands.
func ownName(fd int) (sockName, bool)  { return askName(unix.SYS_GETSOCKNAME, fd) }
func peerName(fd int) (sockName, bool) { return askName(unix.SYS_GETPEERNAME, fd) }

func askName(call uintptr, fd int) (sockName, bool) {
	var raw [unix.SizeofSockaddrAny]byte
	n := uint32(len(raw))
	_, _, e := unix.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&n)))
	if e != 0 {
		return sockName{}, false
	}
	return nameOf(raw[:min(int(n), len(raw))])
}
