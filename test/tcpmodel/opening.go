package tcpmodel

import (
	"encoding/binary"
	"net/netip"
)

// OpeningLen is the number of bytes of an opening. An address of an endpoint has AddressLen.
const (
	OpeningLen = 8 + 2 + 1 + 5 + 16 + 16 + 32 // magic, version, encrypted, zero, ticket, nonce, MAC
	AddressLen = 1 + 1 + 2 + 16 + 16          // version, encrypted, port, address, ticket
)

// Listens returns where the endpoint with this address is reached.
func Listens(address []byte) (at netip.AddrPort, ok bool) {
	if len(address) != AddressLen {
		return at, false
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(address[4:])).Unmap(), binary.BigEndian.Uint16(address[2:])), true
}

// ListensAt returns the address with another place in it.
func ListensAt(address []byte, at netip.AddrPort) []byte {
	ip := at.Addr().As16()
	b := append([]byte(nil), address...)
	binary.BigEndian.PutUint16(b[2:], at.Port())
	copy(b[4:], ip[:])
	return b
}
