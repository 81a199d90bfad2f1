package libfabric

import (
	"encoding/binary"
	"net/netip"

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
