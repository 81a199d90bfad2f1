package nixlapi

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Buffer is memory outside the Go heap, for registration with agents. It is not safe for concurrent use.
type Buffer struct{ B []byte }

// Alloc maps size bytes, private to this process. Free unmaps them.
func Alloc(size int) (*Buffer, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	return &Buffer{B: b}, nil
}

// Free unmaps the buffer. Deregister it first. A second call does nothing.
func (b *Buffer) Free() error {
	if b.B == nil {
		return nil
	}
	err := unix.Munmap(b.B)
	b.B = nil
	return err
}

// Addr returns the address of the first byte.
func (b *Buffer) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b.B)))) }

// Desc describes n bytes at offset off, on device 0.
func (b *Buffer) Desc(off, n uint64) Desc { return Desc{Addr: b.Addr() + off, Len: n} }
