// Package handshake makes the connections of a TCP rail. The initiator of a link dials, the target listens, and both prove that
// they know the secret of the link. A connection that has proved nothing gets no byte, and its place is bounded. package tcp's comment has
// the protocol.
package handshake

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// The first bytes of a connection. The initiator of the link sends an opening, the target answers. Both prove that they know the
// secret of the link. Nothing else is sent before.
const (
	version     = 2
	openingBody = 8 + 2 + 1 + 5 + 16 + 16 // magic, version, encrypted, zero, ticket, nonce
	ticketAt    = 16                      // of an opening
	nonceAt     = 32
	OpeningLen  = openingBody + len(wire.Mac{})            // bytes of an opening
	AnswerLen   = len(trust.ConnNonce{}) + len(wire.Mac{}) // of its answer
)

var magic = [8]byte{'g', 'o', 'r', 'a', 'i', 'l', 0, 'T'}

// ErrProof: the target is not the peer.
var ErrProof = errors.New("the other end does not know the secret of the link")

var errOpening = errors.New("not an opening of this version")

// Connection is a connection whose ends have proved that they know the secret of the link.
type Connection struct {
	*net.TCPConn
	Encrypted         bool // its bytes are in records from here on: the opening says so, and its MAC covers that
	Initiator, Target trust.ConnNonce
}

func connection(c *net.TCPConn, opening, answer []byte) *Connection {
	return &Connection{TCPConn: c, Encrypted: opening[10] != 0, Initiator: trust.ConnNonce(opening[nonceAt:openingBody]),
		Target: trust.ConnNonce(answer[:len(trust.ConnNonce{})])}
}

// NewOpening makes an opening for the target that drew the ticket.
func NewOpening(t trust.Ticket, s *trust.LinkSecret, encrypted bool) []byte {
	b := append(make([]byte, 0, OpeningLen), magic[:]...)
	b = binary.LittleEndian.AppendUint16(b, version)
	b = append(b, flag(encrypted))
	b = append(b, make([]byte, 5)...)
	b = append(b, t[:]...)
	b = append(b, nonce()...)
	mac := s.OpeningMac(b)
	return append(b, mac[:]...)
}

func flag(on bool) byte {
	if on {
		return 1
	}
	return 0
}

func nonce() []byte {
	n := make([]byte, len(trust.ConnNonce{}))
	_, _ = rand.Read(n) // never fails
	return n
}

// ticketOf checks the form of an opening and returns its ticket.
func ticketOf(opening []byte) (t trust.Ticket, err error) {
	if len(opening) != OpeningLen || !bytes.Equal(opening[:8], magic[:]) || binary.LittleEndian.Uint16(opening[8:]) != version || opening[10] > 1 {
		return t, errOpening
	}
	copy(t[:], opening[ticketAt:])
	return t, nil
}

// answer checks who sent the opening, and makes the answer.
func answer(opening []byte, s *trust.LinkSecret) ([]byte, error) {
	mac := s.OpeningMac(opening[:openingBody])
	if !hmac.Equal(mac[:], opening[openingBody:]) {
		return nil, ErrProof
	}
	n := trust.ConnNonce(nonce())
	mac = s.AcceptMac(opening, n)
	return append(n[:], mac[:]...), nil
}

// CheckAnswer checks who sent the answer.
func CheckAnswer(opening, answer []byte, s *trust.LinkSecret) error {
	n := trust.ConnNonce(answer[:len(trust.ConnNonce{})])
	mac := s.AcceptMac(opening, n)
	if !hmac.Equal(mac[:], answer[len(n):]) {
		return ErrProof
	}
	return nil
}

// Address is an endpoint's address as the peer gets it, inside the control channel.
type Address struct {
	At        netip.AddrPort // of the listener
	Ticket    trust.Ticket
	Encrypted bool // its connections are: both ends have the same value
}

const addrLen = 1 + 1 + 2 + 16 + 16 // version, encrypted, port, address, ticket

// Encode returns the bytes of an address.
func (a Address) Encode() []byte {
	ip := a.At.Addr().As16()
	b := append(make([]byte, 0, addrLen), version, flag(a.Encrypted))
	b = binary.BigEndian.AppendUint16(b, a.At.Port())
	b = append(b, ip[:]...)
	return append(b, a.Ticket[:]...)
}

// Decode decodes the address of a peer. A port and a unicast address must be there.
func Decode(b []byte) (a Address, ok bool) {
	if len(b) != addrLen || b[0] != version || b[1] > 1 {
		return a, false
	}
	ip := netip.AddrFrom16([16]byte(b[4:20])).Unmap()
	a.At = netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[2:]))
	copy(a.Ticket[:], b[20:])
	a.Encrypted = b[1] != 0
	return a, a.At.Port() != 0 && !ip.IsUnspecified() && !ip.IsMulticast()
}
