package verbs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// address describes an endpoint to its peer.
type address struct {
	QPN, PSN uint32
	LID, MTU uint16
	Ethernet bool
	Reads    uint8
	GID      [16]byte
}

const (
	addressForm = 1 // first byte: version of the layout
	addressLen  = 1 + 4 + 4 + 2 + 2 + 1 + 1 + 16
)

func (a address) encode() []byte {
	b := append(make([]byte, 0, addressLen), addressForm)
	b = binary.BigEndian.AppendUint32(b, a.QPN)
	b = binary.BigEndian.AppendUint32(b, a.PSN)
	b = binary.BigEndian.AppendUint16(b, a.LID)
	b = binary.BigEndian.AppendUint16(b, a.MTU)
	eth := byte(0)
	if a.Ethernet {
		eth = 1
	}
	return append(append(b, eth, a.Reads), a.GID[:]...)
}

func decodeAddress(b []byte) (a address, ok bool) {
	if len(b) != addressLen || b[0] != addressForm || b[13] > 1 {
		return a, false
	}
	a = address{QPN: binary.BigEndian.Uint32(b[1:]), PSN: binary.BigEndian.Uint32(b[5:]), LID: binary.BigEndian.Uint16(b[9:]),
		MTU: binary.BigEndian.Uint16(b[11:]), Ethernet: b[13] == 1, Reads: b[14], GID: [16]byte(b[15:])}
	return a, a.QPN < 1<<24 && a.PSN < 1<<24 && a.MTU >= 256 && a.Reads > 0
}

// port returns the peer's port for messages: an IP address on Ethernet, a LID on InfiniBand.
func (a address) port() string {
	if a.Ethernet {
		return netip.AddrFrom16(a.GID).Unmap().String()
	}
	return fmt.Sprintf("lid %d", a.LID)
}
