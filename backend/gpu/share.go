package gpu

import (
	"unsafe"
)

// How a peer maps memory: gr_gpu.h.
const (
	byIPC = 1 + iota
	byFDs
	byFabric
)

const shareVersion = 1

// ShareSize is the length of a Share.
const ShareSize = 136

// Share is what a process of this host needs to map memory, but for descriptors: gr_gpu_share as it is.
type Share [ShareSize]byte

// shared is a Share: gr_gpu_share.
type shared struct {
	version, how       uint32
	base, size, buffer uint64 // as its owner has it
	owner, gpu         [16]byte
	pieces             uint32
	from               uint32 // with whom it came, for those who ask for a mapping: what another says is another mapping
	handle             [64]byte
}

var _ = [1]byte{}[unsafe.Sizeof(shared{})-ShareSize]

func (s *Share) is() *shared { return (*shared)(unsafe.Pointer(s)) }

// Pieces is how many descriptors a mapping wants; 0: none.
func (s *Share) Pieces() int {
	if s.is().how != byFDs {
		return 0
	}
	return int(s.is().pieces)
}

// Mappable tells whether another process can map it at all.
func (s *Share) Mappable() bool { return s.is().how != 0 }

// Base is where its owner has the memory.
func (s *Share) Base() uint64 { return s.is().base }

// GPU is the UUID of the memory's.
func (s *Share) GPU() [16]byte { return s.is().gpu }
