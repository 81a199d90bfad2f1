package ipc

import (
	"context"
	"encoding/binary"

	"gorail/backend/gpu"
)

// request asks for some pieces of a region's memory, for a proof, or for a file.
type descriptorRequest struct {
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

const requestSize = TokenSize + 8 + 4 + 4 + 4

func (w *descriptorRequest) encode() []byte {
	b := append(make([]byte, 0, requestSize), w.token[:]...)
	b = binary.NativeEndian.AppendUint64(b, w.key)
	b = binary.NativeEndian.AppendUint32(b, w.what)
	b = binary.NativeEndian.AppendUint32(b, w.first)
	return binary.NativeEndian.AppendUint32(b, w.n)
}

func (w *descriptorRequest) decode(b []byte) {
	w.token = Token(b)
	w.key = binary.NativeEndian.Uint64(b[16:])
	w.what = binary.NativeEndian.Uint32(b[24:])
	w.first, w.n = binary.NativeEndian.Uint32(b[28:]), binary.NativeEndian.Uint32(b[32:])
}

// valid checks a request of a caller.
func (w *descriptorRequest) valid() bool {
	return w.what == askPieces && w.n != 0 && w.n <= DescriptorsPerMessage || w.what == askProof && w.n == 0 || w.what == askFile && w.n == 1
}

// reply has the size of each piece, a proof, the place of a region in a file, or the reason for a refusal (a gpu.Why). The descriptors come with it.
type descriptorReply struct {
	why, n uint32
	size   []uint64
	proof  []byte
}

const replySize = 4 + 4 + 8*DescriptorsPerMessage

func (g *descriptorReply) encode() []byte {
	b := binary.NativeEndian.AppendUint32(make([]byte, 0, replySize), g.why)
	b = binary.NativeEndian.AppendUint32(b, g.n)
	for _, size := range g.size {
		b = binary.NativeEndian.AppendUint64(b, size)
	}
	b = append(b, g.proof...)
	return append(b, make([]byte, replySize-len(b))...)
}

// ProofSource makes a proof for the importer of a region's memory (gpu.Driver.Prove). A refusal returns a reason other than
// 0. One goroutine at a time calls it, and no call of Source runs meanwhile.
type ProofSource func(key uint64) (proof gpu.Proof, why int)

var _ [replySize - 8 - gpu.ProofSize]byte // a proof fits into a reply

// Prove makes the server answer requests for proofs. Before that it refuses them.
func (s *DescriptorServer) Prove(by ProofSource) {
	s.sourceMu.Lock()
	defer s.sourceMu.Unlock()
	s.prover = by
}

// answerProof is answer for a request of a proof. With sourceMu.
func (s *DescriptorServer) answerProof(c *caller, w *descriptorRequest) bool {
	g := descriptorReply{why: uint32(gpu.BadShare)}
	if s.prover != nil {
		proof, why := s.prover(w.key)
		g = descriptorReply{why: uint32(why), proof: proof[:]}
	}
	return c.conn.Send(g.encode()) == nil
}

// FetchProof requests a proof of the owner's. It waits as Fetch does. The error is a gpu.Why.
func FetchProof(ctx context.Context, of MemoryOwner, key uint64) (proof gpu.Proof, err error) {
	f := fetch{ctx: ctx, of: of}
	f.renewDeadline()
	defer func() { f.cancel() }()
	if err := f.connect(); err != nil {
		return proof, err
	}
	defer func() { f.hangUp() }()
	body, _, err := f.request(&descriptorRequest{token: of.Token, key: key, what: askProof})
	if err != nil {
		return proof, err
	}
	return gpu.Proof(body[:gpu.ProofSize]), nil
}
