// Package plan turns descriptor pairs into the operations that are posted. It merges touching pieces and cuts large ones into
// chunks. It has no state, and allocates nothing for a pair. Several threads may share a long list; the plan is that of one. The caller
// writes each piece once, into the memory of the operations:
//
//	w := plan.Writer{Ops: unsafe.Slice(cMemory, n)} // 32 bytes each
//	for i := 0; i < len(local); {
//		i += w.Pairs(local[i:], remote[i:], &here, &there) // most of them
//		err = w.Add(piece)                                 // what is not inside known windows
//	}
//	w.Ops = ... // as long as config.Count(&w); often it is long enough already
//	config.Cut(&w)
//
// Merging: consecutive pieces of the same regions that touch on both sides become one.
//
// Chunks: a piece above ChunkMin bytes is cut into chunks of about clamp(length/2, ChunkMin, ChunkMax). For several links the
// size is clamp(length/(64*links), ChunkMin, ChunkMax). A chunk is never above MaxMsg. Chunks of a piece are about equal, and
// start on multiples of 4 KiB of the piece.
//
// The plan does not assign operations to links. The core's links take batches of operations as fast as they complete them, so
// that shares follow the rates. Chunks are small enough for that: a 64th of a link's fair share of the piece, within the
// limits.
package plan

import (
	"errors"
	"unsafe"
)

// Defaults of the zero fields of a Config, in bytes.
const (
	DefaultChunkMin = 128 << 10
	DefaultChunkMax = 1 << 20
)

// align is the alignment of chunks, counted from the start of their piece.
const align = 4 << 10

// Errors of Add.
var (
	ErrRange   = errors.New("descriptor runs past the end of the address space")
	ErrTooLong = errors.New("total length of the descriptors exceeds 2^63 bytes")
)

// Op is one operation: a segment of a work request, 32 bytes, in the layout of the C core. Before Cut it is a piece: one resolved
// descriptor pair, or several that touch. Addresses and lengths are in bytes. Regions are the caller's indices.
type Op struct {
	Local, Remote, Len uint64
	LRegion, RRegion   uint32
}

// OpSize is the size of an Op in bytes.
const OpSize = 32

// At returns n operations that lie consecutively in C memory.
func At(first unsafe.Pointer, n int) []Op { return unsafe.Slice((*Op)(first), n) }

// Config says how to plan for one peer. The zero value plans for one link with default chunks.
type Config struct {
	Links    int    // links that may share the work; 0 = 1
	ChunkMin uint64 // bytes; 0 = DefaultChunkMin
	ChunkMax uint64 // bytes; 0 = DefaultChunkMax
	MaxMsg   uint64 // largest operation on any of the links, in bytes; 0 = no limit
}
