package notify

// blockSize is the unit of allocation for a body, in bytes: twice the size of a fragment.
const blockSize = 4 << 10

// body is the part of a message's body that has arrived. Memory is allocated for bytes that arrive, not for the
// length that a frame claims.
type body struct {
	total  uint32
	blocks map[uint32][]byte // key: offset / blockSize
}

// put copies p to an offset. The bytes lie within total.
func (b *body) put(offset uint32, p []byte) {
	if b.blocks == nil {
		b.blocks = map[uint32][]byte{}
	}
	for len(p) > 0 {
		i := offset / blockSize
		block := b.blocks[i]
		if block == nil {
			block = make([]byte, min(blockSize, b.total-i*blockSize))
			b.blocks[i] = block
		}
		n := copy(block[offset%blockSize:], p)
		offset, p = offset+uint32(n), p[n:]
	}
}

// join returns a body that has arrived completely.
func (b *body) join() []byte {
	if b.total <= blockSize {
		return b.blocks[0]
	}
	out := make([]byte, 0, b.total)
	for i := uint32(0); uint32(len(out)) < b.total; i++ {
		out = append(out, b.blocks[i]...)
		delete(b.blocks, i)
	}
	return out
}
