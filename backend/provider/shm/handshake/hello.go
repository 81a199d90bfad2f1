package handshake

import (
	"encoding/binary"

	"gorail/backend/provider/shm/ipc"
)

const magic = 0x6c6f6335

// Token is the secret of one endpoint. A connection shows the token of the endpoint that it wants.
type Token = ipc.Token

// hello is the first message of a connection. The namespaces are a claim of the peer: the kernel decides whether we
// may copy to its memory.
type hello struct {
	Magic, Segment uint32
	Token          Token
	NetNS, PidNS   uint64
}

// follows is the listener's answer: when both connections are there, the dialer may move to the listener's own, and the listener will follow. The
// end with the greater token does. Engines of earlier versions answer 0, and two connections stay.
const follows = 1

const helloSize = 4 + 4 + ipc.TokenSize + 8 + 8

func (h *hello) encode() []byte {
	b := binary.NativeEndian.AppendUint32(make([]byte, 0, helloSize), h.Magic)
	b = append(binary.NativeEndian.AppendUint32(b, h.Segment), h.Token[:]...)
	return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(b, h.NetNS), h.PidNS)
}

func (h *hello) decode(b []byte) {
	h.Magic, h.Segment, h.Token = binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[4:]), Token(b[8:])
	h.NetNS, h.PidNS = binary.NativeEndian.Uint64(b[8+ipc.TokenSize:]), binary.NativeEndian.Uint64(b[16+ipc.TokenSize:])
}
