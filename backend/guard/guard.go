// Package guard copies memory of the application, which may be unmapped or protected at any time, without harm to the process.
// backend/include/gr_guard.h has its calls, for C. An import links them.
package guard

// #cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
// #cgo LDFLAGS: -lpthread
// #include "gr_guard.h"
import "C"

import "unsafe"

// Readable reports whether all bytes of a range of this process can be read. It takes as long as a copy of them.
func Readable(addr, size uint64) bool {
	return C.gr_guard_readable(*(*unsafe.Pointer)(unsafe.Pointer(&addr)), C.size_t(size)) != 0
}
