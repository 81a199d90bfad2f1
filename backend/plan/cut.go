package plan

import "math"

// cutter knows how long chunks are.
type cutter struct {
	share    uint64 // a chunk is about this part of its piece
	min, max uint64 // ChunkMin, and the most bytes of a chunk
	limit    uint64 // the most bytes of any operation
}

func (c Config) cutter() cutter {
	k := cutter{min: c.ChunkMin, max: c.ChunkMax, limit: c.MaxMsg}
	if k.min == 0 {
		k.min = DefaultChunkMin
	}
	if k.max == 0 {
		k.max = DefaultChunkMax
	}
	if k.limit == 0 {
		k.limit = math.MaxUint64
	}
	k.max = min(max(k.min, k.max), k.limit)
	k.min = min(k.min, k.max)
	k.share = 2
	if c.Links > 1 {
		k.share = 64 * uint64(c.Links)
	}
	return k
}

// size is the length of a piece's chunks; the last may be shorter. The piece's own length when it isn't cut.
func (k cutter) size(length uint64) uint64 {
	if length <= k.min {
		return length
	}
	want := min(max(length/k.share, k.min), k.max)
	n := length / want
	if ceil(length, n) > k.max {
		n = ceil(length, k.max)
	}
	size := ceil(length, n)
	if up := ceil(size, align) * align; n > 1 && up <= k.max {
		return up
	}
	return size
}

// count is the number of operations of a piece.
func (k cutter) count(length uint64) int {
	size := k.size(length)
	if size >= length {
		return 1
	}
	return int(ceil(length, size))
}

// cut writes a piece's operations from dst[next] on and gives the index after the last; -1 when dst is too short.
func (k cutter) cut(dst []Op, next int, p Piece) int {
	size := k.size(p.Len)
	for p.Len > 0 {
		if next == len(dst) {
			return -1
		}
		op := Op(p)
		op.Len = min(size, p.Len)
		dst[next] = op
		next++
		p.Local, p.Remote, p.Len = p.Local+op.Len, p.Remote+op.Len, p.Len-op.Len
	}
	return next
}

// ceil is a/b rounded up, b > 0, without overflow.
func ceil(a, b uint64) uint64 {
	q := a / b
	if q*b != a {
		q++
	}
	return q
}
