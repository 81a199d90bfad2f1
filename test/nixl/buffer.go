package nixl

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Kind says what stands behind a buffer.
type Kind int

// Kinds of memory that applications register.
const (
	Anon    Kind = iota // private anonymous pages
	Shared              // shared anonymous pages
	Memfd               // a file in memory
	Reserve             // address space only: PROT_NONE, never touched
	Tiled               // many addresses over few pages: see Windows
)

// Buffer is memory outside the Go heap.
type Buffer struct{ B []byte }

// Alloc maps size bytes.
func Alloc(size int, kind Kind) (*Buffer, error) {
	fd, prot, flags := -1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS
	switch kind {
	case Shared:
		flags = unix.MAP_SHARED | unix.MAP_ANONYMOUS
	case Memfd:
		f, err := unix.MemfdCreate("gorail-test", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, err
		}
		defer func() { _ = unix.Close(f) }()
		if err := unix.Ftruncate(f, int64(size)); err != nil {
			return nil, err
		}
		fd, flags = f, unix.MAP_SHARED
	case Tiled:
		b, err := tiled(size)
		return &Buffer{B: b}, err
	case Reserve:
		prot, flags = unix.PROT_NONE, flags|unix.MAP_NORESERVE
	}
	b, err := unix.Mmap(fd, 0, size, prot, flags)
	if err != nil {
		return nil, err
	}
	return &Buffer{B: b}, nil
}

// Free unmaps the buffer.
func (b *Buffer) Free() error {
	if b.B == nil {
		return nil
	}
	err := unix.Munmap(b.B)
	b.B = nil
	return err
}

// Addr is where the buffer starts.
func (b *Buffer) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b.B)))) }

// Desc is a range of the buffer on device 0.
func (b *Buffer) Desc(off, n uint64) Desc { return Desc{Addr: b.Addr() + off, Len: n} }
