package tcp

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"

	"gorail/backend/trust"
	"gorail/backend/wire"
)

// The first bytes of a connection. The initiator of the link sends an opening, the target answers. Both prove that they know the
// secret of the link. Nothing else is sent before.
const (
	openingVersion = 2
	openingBody    = 8 + 2 + 1 + 5 + 16 + 16 // magic, version, encrypted, zero, ticket, nonce
	ticketAt       = 16                      // of an opening
	nonceAt        = 32
	openingLen     = openingBody + len(wire.Mac{})            // bytes of an opening
	answerLen      = len(trust.ConnNonce{}) + len(wire.Mac{}) // of its answer
)

var openingMagic = [8]byte{'g', 'o', 'r', 'a', 'i', 'l', 0, 'T'}

// errProof: the target is not the peer.
var errProof = errors.New("the other end does not know the secret of the link")

var errOpening = errors.New("not an opening of this version")

// connection is a connection whose ends have proved that they know the secret of the link.
type connection struct {
	*net.TCPConn
	Encrypted         bool // its bytes are in records from here on: the opening says so, and its MAC covers that
	Initiator, Target trust.ConnNonce
}

func newConnection(c *net.TCPConn, opening, answer []byte) *connection {
	return &connection{TCPConn: c, Encrypted: opening[10] != 0, Initiator: trust.ConnNonce(opening[nonceAt:openingBody]),
		Target: trust.ConnNonce(answer[:len(trust.ConnNonce{})])}
}

// newOpening makes an opening for the target that drew the ticket.
func newOpening(t trust.Ticket, s *trust.LinkSecret, encrypted bool) []byte {
	b := append(make([]byte, 0, openingLen), openingMagic[:]...)
	b = binary.LittleEndian.AppendUint16(b, openingVersion)
	b = append(b, flagByte(encrypted))
	b = append(b, make([]byte, 5)...)
	b = append(b, t[:]...)
	b = append(b, newNonce()...)
	mac := s.OpeningMac(b)
	return append(b, mac[:]...)
}

func flagByte(on bool) byte {
	if on {
		return 1
	}
	return 0
}

func newNonce() []byte {
	n := make([]byte, len(trust.ConnNonce{}))
	_, _ = rand.Read(n) // never fails
	return n
}

// ticketOf checks the form of an opening and returns its ticket.
func openingTicket(opening []byte) (t trust.Ticket, err error) {
	if len(opening) != openingLen || !bytes.Equal(opening[:8], openingMagic[:]) || binary.LittleEndian.Uint16(opening[8:]) != openingVersion || opening[10] > 1 {
		return t, errOpening
	}
	copy(t[:], opening[ticketAt:])
	return t, nil
}

// answerOpening checks who sent the opening, and makes the answer.
func answerOpening(opening []byte, s *trust.LinkSecret) ([]byte, error) {
	mac := s.OpeningMac(opening[:openingBody])
	if !hmac.Equal(mac[:], opening[openingBody:]) {
		return nil, errProof
	}
	n := trust.ConnNonce(newNonce())
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
