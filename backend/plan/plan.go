// Package plan turns descriptor pairs into the operations that are posted: merged where they touch and cut into chunks.
// It is pure, and works in two passes so that nothing is allocated per descriptor:
//
//	layout, err := config.Count(n, source)    // how many operations
//	dst := unsafe.Slice(cMemory, layout.Ops)  // 32 bytes each
//	err = config.Fill(dst, n, source)         // writes them
//
// Both passes cost some 6 to 9 ns a descriptor, for any number of links and from 1,000 descriptors to 1,000,000
// [m: docs/performance.md].
//
// Merging: consecutive pieces of the same regions that touch on both sides become one.
//
// Chunks: a piece above ChunkMin bytes is cut into chunks of about clamp(length/2, ChunkMin, ChunkMax), for several links
// clamp(length/(64*links), ChunkMin, ChunkMax), never above MaxMsg, and about equal, starting on multiples of 4 KiB of the
// piece.
//
// Which link carries what is not planned: the core's links take runs of operations as fast as they get them through, so that
// shares follow the rates. Chunks are small enough for that: a 64th of a link's fair share of the piece, within the limits.
package plan

import (
	"errors"
	"math"
	"unsafe"
)

// Defaults of a Config's zero fields, in bytes.
const (
	DefaultChunkMin = 128 << 10
	DefaultChunkMax = 1 << 20
)

// align is what chunks start on, counted from the start of their piece.
const align = 4 << 10

// Errors of Count and Fill.
var (
	ErrRange    = errors.New("descriptor runs past the end of the address space")
	ErrTooLong  = errors.New("descriptors add up to more than 2^63 bytes")
	ErrTooShort = errors.New("room for fewer operations than the plan has")
)

// Piece is one descriptor pair, resolved. Addresses and lengths in bytes; regions are the caller's numbers.
type Piece struct {
	Local, Remote, Len uint64
	LRegion, RRegion   uint32
}

// Op is one operation: a segment of a work request, 32 bytes, the layout of the C core's own.
type Op struct {
	Local, Remote, Len uint64
	LRegion, RRegion   uint32
}

// OpSize is the size of an Op in bytes.
const OpSize = 32

// At is operations that lie one behind the other in C's memory.
func At(first unsafe.Pointer, n int) []Op { return unsafe.Slice((*Op)(first), n) }

// Config is how to plan for one peer. The zero value plans for one link with the default chunks.
type Config struct {
	Links    int    // that may share the work; 0 = 1
	ChunkMin uint64 // bytes; 0 = DefaultChunkMin
	ChunkMax uint64 // bytes; 0 = DefaultChunkMax
	MaxMsg   uint64 // most bytes of one operation on any of the links; 0 = no limit
}

// Layout is the outcome of Count.
type Layout struct {
	Ops   int    // operations in all; 0 when all pieces are empty
	Bytes uint64 // bytes in all
}

// Count plans without writing anything: n pieces of the source.
// ErrRange (naming the piece) or ErrTooLong.
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

// Fill writes the operations of the same pieces to dst, in order. dst may be C memory.
// ErrTooShort when dst is not long enough; the errors of Count otherwise.
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
