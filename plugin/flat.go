package plugin

/*
#include "gorail.h"
*/
import "C"

import "unsafe"

// A descriptor list crosses the boundary in place. This fails to compile unless the layouts agree.
const (
	_ = -(unsafe.Sizeof(Desc{}) ^ unsafe.Sizeof(C.gr_desc{}))
	_ = -(unsafe.Offsetof(Desc{}.Addr) ^ unsafe.Offsetof(C.gr_desc{}.addr))
	_ = -(unsafe.Offsetof(Desc{}.Len) ^ unsafe.Offsetof(C.gr_desc{}.len))
	_ = -(unsafe.Offsetof(Desc{}.Dev) ^ unsafe.Offsetof(C.gr_desc{}.dev))
	_ = -(unsafe.Offsetof(Desc{}.MD) ^ unsafe.Offsetof(C.gr_desc{}.md))
)

// str copies a borrowed string.
func str(b *C.gr_bytes) string { return string(bytes(b)) }

// bytes returns borrowed bytes in place.
func bytes(b *C.gr_bytes) []byte { return unsafe.Slice((*byte)(b.ptr), b.len) }

// owned copies bytes into C memory that the caller frees.
func owned(b []byte) C.gr_owned {
	return C.gr_owned{ptr: C.CBytes(b), len: C.uint64_t(len(b))}
}

// descs returns a borrowed descriptor list in place.
func descs(d *C.gr_desc, n C.uint64_t) []Desc { return unsafe.Slice((*Desc)(unsafe.Pointer(d)), n) }
