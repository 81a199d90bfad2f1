package transfer

import (
	"errors"
)

// Defaults of the zero fields of a planConfig, in bytes.
const (
	defaultChunkMin = 128 << 10
	defaultChunkMax = 1 << 20
)

// align is the alignment of chunks, counted from the start of their piece.
const chunkAlign = 4 << 10

// Errors of Add.
var (
	errRange   = errors.New("descriptor runs past the end of the address space")
	errTooLong = errors.New("total length of the descriptors exceeds 2^63 bytes")
)

// planConfig says how to plan for one peer. The zero value plans for one link with default chunks.
type planConfig struct {
	Links    int    // links that may share the work; 0 = 1
	ChunkMin uint64 // bytes; 0 = DefaultChunkMin
	ChunkMax uint64 // bytes; 0 = DefaultChunkMax
	MaxMsg   uint64 // largest operation on any of the links, in bytes; 0 = no limit
}
