package gpu

import (
	"unsafe"
)

// Methods for a peer to map memory, as in gr_gpu.h.
const (
	byIPC = 1 + iota
	byFDs
	byFabric
	byHandles // fabric handles that follow, as descriptors do: for other hosts
)

const shareVersion = 1

// ShareSize is the length of a Share.
const ShareSize = 136

// Share describes memory so that a process of this host can map it. VMM memory also takes file descriptors. It has the bytes of
// a gr_gpu_share.
type Share [ShareSize]byte

// shared is the layout of a Share: gr_gpu_share.
type shared struct {
	version, how       uint32
	base, size, buffer uint64 // addresses and sizes of the owner
	owner, gpu         [16]byte
	pieces             uint32
	// In an unmappable share: its Why. In a share to map: a number of the peer process that sent it, so that mappings are never
	// shared between peers
	source uint32
	handle [64]byte
}

var _ = [1]byte{}[unsafe.Sizeof(shared{})-ShareSize]

func (s *Share) fields() *shared { return (*shared)(unsafe.Pointer(s)) }

// Pieces is the number of descriptors that a mapping needs; 0: none.
func (s *Share) Pieces() int {
	if how := s.fields().how; how != byFDs && how != byHandles {
		return 0
	}
	return int(s.fields().pieces)
}

// Mappable reports whether another process can map the memory.
func (s *Share) Mappable() bool { return s.fields().how != 0 }

// Base is the address of the memory at its owner.
func (s *Share) Base() uint64 { return s.fields().base }

// GPU is the UUID of the memory's GPU.
func (s *Share) GPU() [16]byte { return s.fields().gpu }

const (
	proofWord = 16 // bytes that a proof compares at a time
	samples   = 8  // words of the application's memory in a proof
)

// ProofSize is the length of a Proof.
const ProofSize = ShareSize + 8 + proofWord + samples*(8+proofWord)

// Proof lets a peer check its mapping of our memory by an IPC handle in which the process number is replaced. It has a word
// that we wrote to memory of our own, the handle of that memory, and words that we read from the memory to map.
type Proof [ProofSize]byte

type proof struct {
	own    shared // our memory with the word
	at     uint64 // the word's offset there
	word   [proofWord]byte
	sample [samples]struct {
		at   uint64 // offset in the memory to map
		word [proofWord]byte
	}
}

var _ = [1]byte{}[unsafe.Sizeof(proof{})-ProofSize]

func (p *Proof) fields() *proof { return (*proof)(unsafe.Pointer(p)) }
