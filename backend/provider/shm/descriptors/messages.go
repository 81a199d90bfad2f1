package descriptors

import (
	"encoding/binary"

	"gorail/backend/provider/shm/ipc"
)

// request asks for some pieces of a region's memory, for a proof, or for a file.
type request struct {
	token    Token
	key      uint64
	what     uint32 // askPieces, askProof, askFile
	first, n uint32 // askProof: 0; askFile: 0 and 1
}

const (
	askPieces uint32 = iota
	askProof
	askFile
)

const requestSize = ipc.TokenSize + 8 + 4 + 4 + 4

func (w *request) encode() []byte {
	b := append(make([]byte, 0, requestSize), w.token[:]...)
	b = binary.NativeEndian.AppendUint64(b, w.key)
	b = binary.NativeEndian.AppendUint32(b, w.what)
	b = binary.NativeEndian.AppendUint32(b, w.first)
	return binary.NativeEndian.AppendUint32(b, w.n)
}

func (w *request) decode(b []byte) {
	w.token = Token(b)
	w.key = binary.NativeEndian.Uint64(b[16:])
	w.what = binary.NativeEndian.Uint32(b[24:])
	w.first, w.n = binary.NativeEndian.Uint32(b[28:]), binary.NativeEndian.Uint32(b[32:])
}

// valid checks a request of a caller.
func (w *request) valid() bool {
	return w.what == askPieces && w.n != 0 && w.n <= PerMessage || w.what == askProof && w.n == 0 || w.what == askFile && w.n == 1
}

// reply has the size of each piece, a proof, the place of a region in a file, or the reason for a refusal (a gpu.Why). The descriptors come with it.
type reply struct {
	why, n uint32
	size   []uint64
	proof  []byte
}

const replySize = 4 + 4 + 8*PerMessage

func (g *reply) encode() []byte {
	b := binary.NativeEndian.AppendUint32(make([]byte, 0, replySize), g.why)
	b = binary.NativeEndian.AppendUint32(b, g.n)
	for _, size := range g.size {
		b = binary.NativeEndian.AppendUint64(b, size)
	}
	b = append(b, g.proof...)
	return append(b, make([]byte, replySize-len(b))...)
}
