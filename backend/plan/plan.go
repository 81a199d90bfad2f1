// Package plan turns descriptor pairs into the operations that are posted. It merges touching pieces and cuts large ones into
// chunks. It has no state, and works in two passes, so that it allocates nothing per descriptor:
//
//	layout, err := config.Count(n, source)    // how many operations
//	dst := unsafe.Slice(cMemory, layout.Ops)  // 32 bytes each
//	err = config.Fill(dst, n, source)         // writes them
//
// Both passes cost about 6 to 9 ns a descriptor, for any number of links and from 1,000 descriptors to 1,000,000 [m:
// docs/performance.md].
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
	"math"
	"unsafe"
)

// Defaults of the zero fields of a Config, in bytes.
const (
	DefaultChunkMin = 128 << 10
	DefaultChunkMax = 1 << 20
)

// align is the alignment of chunks, counted from the start of their piece.
const align = 4 << 10

// Errors of Count and Fill.
var (
	ErrRange    = errors.New("descriptor runs past the end of the address space")
	ErrTooLong  = errors.New("total length of the descriptors exceeds 2^63 bytes")
	ErrTooShort = errors.New("the destination has room for fewer operations than the plan has")
)

// Piece is one resolved descriptor pair. Addresses and lengths are in bytes. Regions are the caller's indices.
type Piece struct {
	Local, Remote, Len uint64
	LRegion, RRegion   uint32
}

// Op is one operation: a segment of a work request, 32 bytes, in the layout of the C core.
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

// Layout is the result of Count.
type Layout struct {
	Ops   int    // total operations; 0 if all pieces are empty
	Bytes uint64 // total bytes
}

// Count plans n pieces of the source without writing anything. Errors: ErrRange (naming the piece) and ErrTooLong.
func (c Config) Count(n int, source Source) (Layout, error) {
	k := c.cutter()
	l := Layout{}
	for w := newWalker(n, source); ; {
		batch, err := w.next()
		if err != nil {
			return Layout{}, err
		}
		if len(batch) == 0 {
			break
		}
		for i := range batch {
			length := batch[i].Len
			if length > k.min {
				l.Ops += k.count(length)
			} else {
				l.Ops++
			}
			if l.Bytes += length; l.Bytes > math.MaxInt64 || length > math.MaxInt64 {
				return Layout{}, ErrTooLong
			}
		}
	}
	return l, nil
}

// Fill writes the operations of the same pieces to dst, in order. dst may be C memory. ErrTooShort: dst is too short. Other
// errors are those of Count.
func (c Config) Fill(dst []Op, n int, source Source) error {
	k := c.cutter()
	next := 0
	for w := newWalker(n, source); ; {
		batch, err := w.next()
		if err != nil || len(batch) == 0 {
			return err
		}
		for i := range batch {
			if batch[i].Len > k.min {
				if next = k.cut(dst, next, batch[i]); next < 0 {
					return ErrTooShort
				}
				continue
			}
			if next == len(dst) {
				return ErrTooShort
			}
			dst[next] = Op(batch[i])
			next++
		}
	}
}
