package descriptors

import (
	"context"

	"gorail/backend/gpu"
)

// Prover makes a proof for the importer of a region's memory (gpu.Driver.Prove). A refusal returns a reason other than
// 0. One goroutine at a time calls it, and no call of Source runs meanwhile.
type Prover func(key uint64) (proof gpu.Proof, why int)

var _ [replySize - 8 - gpu.ProofSize]byte // a proof fits into a reply

// Prove makes the Server answer requests for proofs. Before that it refuses them.
func (s *Server) Prove(by Prover) {
	s.sourceMu.Lock()
	defer s.sourceMu.Unlock()
	s.prover = by
}

// answerProof is answer for a request of a proof. With sourceMu.
func (s *Server) answerProof(c *caller, w *request) bool {
	g := reply{why: uint32(gpu.BadShare)}
	if s.prover != nil {
		proof, why := s.prover(w.key)
		g = reply{why: uint32(why), proof: proof[:]}
	}
	return c.conn.Send(g.encode()) == nil
}

// FetchProof requests a proof of the owner's. It waits as Fetch does. The error is a gpu.Why.
func FetchProof(ctx context.Context, of Owner, key uint64) (proof gpu.Proof, err error) {
	f := fetch{ctx: ctx, of: of}
	f.renewDeadline()
	defer func() { f.cancel() }()
	if err := f.connect(); err != nil {
		return proof, err
	}
	defer func() { f.hangUp() }()
	body, _, err := f.request(&request{token: of.Token, key: key, what: askProof})
	if err != nil {
		return proof, err
	}
	return gpu.Proof(body[:gpu.ProofSize]), nil
}
