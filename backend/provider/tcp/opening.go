package tcp

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net/netip"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// The first bytes of a connection. The initiator of the link sends an opening, the target answers. Both prove that they know the
// secret of the link. Nothing else is sent before.
const (
	version     = 1
	openingBody = 8 + 2 + 6 + 16 + 16 // magic, version, zero, ticket, nonce
	openingLen  = openingBody + len(wire.Mac{})
	answerLen   = len(trust.ConnNonce{}) + len(wire.Mac{})
)

var magic = [8]byte{'g', 'o', 'r', 'a', 'i', 'l', 0, 'T'}

var (
	errOpening = errors.New("not an opening of this version")
	errProof   = errors.New("the other end does not know the secret of the link")
)

// newOpening makes an opening for the target that drew the ticket.
func newOpening(t trust.Ticket, s *trust.LinkSecret) []byte {
	b := append(make([]byte, 0, openingLen), magic[:]...)
	b = binary.LittleEndian.AppendUint16(b, version)
	b = append(b, make([]byte, 6)...)
	b = append(b, t[:]...)
	b = append(b, nonce()...)
	mac := s.OpeningMac(b)
	return append(b, mac[:]...)
}

func nonce() []byte {
	n := make([]byte, len(trust.ConnNonce{}))
	_, _ = rand.Read(n) // never fails
	return n
}

// ticketOf checks the form of an opening and returns its ticket.
func ticketOf(opening []byte) (t trust.Ticket, err error) {
	if len(opening) != openingLen || !bytes.Equal(opening[:8], magic[:]) || binary.LittleEndian.Uint16(opening[8:]) != version {
		return t, errOpening
	}
	copy(t[:], opening[16:])
	return t, nil
}

// answer checks who sent the opening, and makes the answer.
func answer(opening []byte, s *trust.LinkSecret) ([]byte, error) {
	mac := s.OpeningMac(opening[:openingBody])
	if !hmac.Equal(mac[:], opening[openingBody:]) {
		return nil, errProof
	}
	n := trust.ConnNonce(nonce())
	mac = s.AcceptMac(opening, n)
	return append(n[:], mac[:]...), nil
}

// checkAnswer checks who sent the answer.
func checkAnswer(opening, answer []byte, s *trust.LinkSecret) error {
	n := trust.ConnNonce(answer[:len(trust.ConnNonce{})])
	mac := s.AcceptMac(opening, n)
	if !hmac.Equal(mac[:], answer[len(n):]) {
		return errProof
	}
	return nil
}

// address is an endpoint's address as the peer gets it, inside the control channel.
type endpointAddr struct {
	at     netip.AddrPort // of the listener
	ticket trust.Ticket
}

const addrLen = 1 + 1 + 2 + 16 + 16 // version, zero, port, address, ticket

func (a endpointAddr) encode() []byte {
	ip := a.at.Addr().As16()
	b := append(make([]byte, 0, addrLen), version, 0)
	b = binary.BigEndian.AppendUint16(b, a.at.Port())
	b = append(b, ip[:]...)
	return append(b, a.ticket[:]...)
}

// decodeAddr decodes the address of a peer. A port and a unicast address must be there.
func decodeAddr(b []byte) (a endpointAddr, ok bool) {
	if len(b) != addrLen || b[0] != version || b[1] != 0 {
		return a, false
	}
	ip := netip.AddrFrom16([16]byte(b[4:20])).Unmap()
	a.at = netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[2:]))
	copy(a.ticket[:], b[20:])
	return a, a.at.Port() != 0 && !ip.IsUnspecified() && !ip.IsMulticast()
}
