package clib

// #include <stdlib.h>
import "C"

import (
	"syscall"
	"unsafe"

	"gorail/backend/failpoint"
)

// Zeroed implements calloc: n zeroed objects of so many bytes in C memory, which the caller frees. point is its failpoint.
func Zeroed(point string, n, size uintptr) (unsafe.Pointer, error) {
	if err := failpoint.Fail(point); err != nil {
		return nil, Failed("calloc", err)
	}
	p := C.calloc(C.size_t(n), C.size_t(size))
	if p == nil {
		return nil, Failed("calloc", syscall.ENOMEM)
	}
	return p, nil
}
