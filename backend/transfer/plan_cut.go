package transfer

import "gorail/backend/core"

import "math"

// cutter computes the length of chunks.
type cutter struct {
	share    uint64 // a chunk is about 1/share of its piece
	min, max uint64 // ChunkMin, and the largest chunk, in bytes
	limit    uint64 // largest operation, in bytes
}

func (c planConfig) cutter() cutter {
	k := cutter{min: c.ChunkMin, max: c.ChunkMax, limit: c.MaxMsg}
	if k.min == 0 {
		k.min = defaultChunkMin
	}
	if k.max == 0 {
		k.max = defaultChunkMax
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

// size returns the length of a piece's chunks. The last chunk may be shorter. The size of an uncut piece is its own length.
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
	if up := ceil(size, chunkAlign) * chunkAlign; n > 1 && up <= k.max {
		return up
	}
	return size
}

// count returns the number of operations of a piece.
func (k cutter) count(length uint64) int {
	size := k.size(length)
	if size >= length {
		return 1
	}
	return int(ceil(length, size))
}

// cut writes the operations of a piece to the end of dst. It returns the index of the first one.
func (k cutter) cut(dst []core.Op, p core.Op) (first int) {
	if p.Len <= k.min {
		dst[len(dst)-1] = p
		return len(dst) - 1
	}
	n, size := k.count(p.Len), k.size(p.Len)
	first = len(dst) - n
	for i := first; i < len(dst); i++ {
		op := p
		op.Len = min(size, p.Len)
		dst[i] = op
		p.Local, p.Remote, p.Len = p.Local+op.Len, p.Remote+op.Len, p.Len-op.Len
	}
	return first
}

// ceil returns a/b rounded up, for b > 0, without overflow.
func ceil(a, b uint64) uint64 {
	q := a / b
	if q*b != a {
		q++
	}
	return q
}
