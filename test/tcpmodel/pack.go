package tcpmodel

import "encoding/binary"

// Sizes of a packed body: option compression.
const (
	PackHead  = 8        // bytes of a block's head
	PackBlock = 64 << 10 // most bytes of a block's text
	packTail  = 1        // bytes behind a block
	packLeast = 256      // elements of a block with codes
)

// Kinds of a block.
const (
	plainBlock = iota
	zeroBlock
	codedBlock
)

// blockLen returns the bytes of a block for n bytes of text, or 0: it is none. pack.h has the form.
func blockLen(head []byte, n int) int {
	kind, width, base, bits, out := head[0], int(head[1]), head[2], int(head[3]), int(binary.LittleEndian.Uint32(head[4:]))
	if kind != codedBlock {
		switch {
		case width != 0 || base != 0 || bits != 0 || out != 0 || kind > codedBlock:
			return 0
		case kind == zeroBlock:
			return PackHead
		}
		return PackHead + n
	}
	if width != 1 && width != 2 && width != 4 || bits < 1 || bits > 7 {
		return 0
	}
	elements, most := n/(8*width)*8, n*993/1024 // 3 % are won
	fixed := PackHead + elements/8*bits + n - elements
	if elements < packLeast || fixed > most || out > most-fixed {
		return 0
	}
	return fixed + out
}

// Unpack returns the n bytes of text of a whole block, by the words of pack.h, a bit at a time. false: it is no block of so many bytes.
func Unpack(block []byte, n int) (text []byte, ok bool) {
	switch {
	case len(block) < PackHead || blockLen(block, n) != len(block):
		return nil, false
	case block[0] == plainBlock:
		return block[PackHead:], true
	case block[0] == zeroBlock:
		return make([]byte, n), true
	}
	width, base, bits := int(block[1]), block[2], int(block[3])
	elements := n / (8 * width) * 8
	row := elements / 8
	codes, rest := block[PackHead:][:bits*row], block[PackHead+bits*row:]
	tail := rest[elements*(width-1):]
	tail, exceptions := tail[:n-elements*width], tail[n-elements*width:]
	text = make([]byte, n)
	for i := range elements {
		code := 0
		for k := range bits {
			at := i/row*bits + k
			code |= int(codes[at/8*row+i%row]>>(at%8)&1) << k
		}
		top := base + byte(code)
		if code == 1<<bits-1 {
			if len(exceptions) == 0 {
				return nil, false
			}
			top, exceptions = exceptions[0], exceptions[1:]
		}
		x := uint64(top) << (8 * (width - 1))
		switch width {
		case 2:
			x |= uint64(rest[i])
		case 4:
			x |= uint64(rest[2*elements+i])<<16 | uint64(binary.LittleEndian.Uint16(rest[2*i:]))
		}
		x = x>>1 | x&1<<(8*width-1)
		for k := range width {
			text[i*width+k] = byte(x >> (8 * k))
		}
	}
	copy(text[elements*width:], tail)
	return text, len(exceptions) == 0
}

// Unpacked returns the text of the first len(b) of all packed bytes, which stand for n. Blocks count once the byte behind them is there.
func Unpacked(b []byte, all, n int) (text []byte, err error) {
	for at := 0; at < len(b); {
		size, here := min(n-len(text), PackBlock), b[at:]
		if all-at < PackHead+packTail {
			return text, ErrRule
		}
		if len(here) < PackHead {
			break
		}
		need := blockLen(here, size)
		if need == 0 || at+need+packTail > all {
			return text, ErrRule
		}
		if len(here) < need {
			break
		}
		part, ok := Unpack(here[:need], size)
		if !ok {
			return text, ErrRule
		}
		if len(here) < need+packTail {
			break
		}
		text = append(text, part...)
		at += need + packTail
		if (at == all) != (len(text) == n) {
			return text, ErrRule
		}
	}
	return text, nil
}

// PackPlain packs a text into blocks that are as it is.
func PackPlain(text []byte) (body []byte) {
	for len(text) > 0 {
		n := min(len(text), PackBlock)
		body = append(append(append(body, make([]byte, PackHead)...), text[:n]...), 0)
		text = text[n:]
	}
	return body
}
