package sock

/*
#include "sock.h"
*/
import "C"

import "syscall"

// Packing says when bodies of frames are packed: option compression.
type Packing int

// The ways of Packing.
const (
	NeverPack  Packing = C.TCP_PACK_OFF
	PackIfFast Packing = C.TCP_PACK_AUTO // while that makes the connection faster
	AlwaysPack Packing = C.TCP_PACK_ON
)

var packings = map[string]Packing{"off": NeverPack, "auto": PackIfFast, "on": AlwaysPack}

// PackingOf returns the Packing of a word of option compression.
func PackingOf(word string) Packing { return packings[word] }

// String returns the option's word.
func (p Packing) String() string {
	for word, as := range packings {
		if as == p {
			return word
		}
	}
	return "?"
}

// Pack makes connections of the rail able to pack and unpack, before the first is made. ENOMEM: there is no memory for that.
func (r *Rail) Pack(as Packing) error {
	if as == NeverPack {
		return nil
	}
	return errno(C.tcp_rail_pack(r.c, C.uint8_t(as)))
}

// Paces measure, for compression=auto, connections that share a wire and go the same way. Safe for concurrent use.
type Paces struct{ c *C.tcp_paces }

// NewPaces has measured nothing. ENOMEM: there is no memory; connections without Paces stay in clear.
func NewPaces() (*Paces, error) {
	c := C.tcp_paces_new()
	if c == nil {
		return nil, syscall.ENOMEM
	}
	return &Paces{c}, nil
}

// Free frees them, once all of their connections are closed.
func (p *Paces) Free() { C.tcp_paces_free(p.c) }

// Pack lets both ends of the connection pack, before Attach: the peer has said that it unpacks. On a rail that does not pack it does nothing.
func (c *Conn) Pack(p *Paces) {
	var paces *C.tcp_paces
	if p != nil {
		paces = p.c
	}
	C.tcp_conn_pack(c.c, paces)
}

// TunePacking changes, for tests of a rail that packs, the least bytes of a body that is packed. Those that do not gain are packed, too.
func (r *Rail) TunePacking(least int) { C.tcp_rail_tune_packing(r.c, C.uint32_t(least), 1) }
