package sock

/*
#include "pack.h"
*/
import "C"

import "unsafe"

// PackHead and PackBlock are bytes of a block's head, and the most of its text.
const (
	PackHead  = C.PACK_HEAD
	PackBlock = C.PACK_BLOCK
)

// Packer compresses and decompresses blocks of one stream: the rail's C code does it without this. pack.h has the form of a block.
type Packer struct {
	scratch C.pack_scratch
	hint    C.pack_hint
}

// Encode writes text as a block, and returns its length: that of the text and PackHead at most. Implements pack_encode.
func (p *Packer) Encode(to, text []byte) int {
	if len(text) == 0 || len(text) > PackBlock || len(to) < PackHead+len(text) {
		panic("sock: no room for a block")
	}
	return int(C.pack_encode(&p.scratch, &p.hint, bytesAt(to), bytesAt(text), C.uint32_t(len(text))))
}

// Decode fills text from a block. false: Encode did not write that. Implements pack_decode.
func (p *Packer) Decode(text, block []byte) bool {
	return C.pack_decode(&p.scratch, bytesAt(text), C.uint32_t(len(text)), bytesAt(block), C.uint32_t(len(block))) == 0
}

// Hint replaces what the last block was.
func (p *Packer) Hint(raw uint64) {
	at := (*[unsafe.Sizeof(p.hint)]byte)(unsafe.Pointer(&p.hint))
	for i := range at {
		at[i] = byte(raw >> (8 * i))
	}
}

// PackLength returns the length of a block of n bytes of text by its head. 0: none has it. Implements pack_length.
func PackLength(head [PackHead]byte, n int) int {
	return int(C.pack_length(bytesAt(head[:]), C.uint32_t(n)))
}

func bytesAt(b []byte) *C.uint8_t { return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(b))) }
