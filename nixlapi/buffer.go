package nixlapi

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Buffer is memory outside the Go heap, for registration with agents. It is not safe for concurrent use.
type Buffer struct {
	B    []byte
	file *os.File // of shared memory; nil: private
}

// Alloc maps size bytes, private to this process. Free unmaps them.
func Alloc(size int) (*Buffer, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	return &Buffer{B: b}, nil
}

// AllocShared maps size bytes of a new memfd. The memfd stays open until Free, as in applications that share memory.
func AllocShared(size int) (*Buffer, error) {
	fd, err := unix.MemfdCreate("gorail-bench", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	if err := f.Truncate(int64(size)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("mmap", err), f.Close())
	}
	return &Buffer{B: b, file: f}, nil
}

// Free unmaps the buffer. Deregister it first. A second call does nothing.
func (b *Buffer) Free() error {
	if b.B == nil {
		return nil
	}
	err := unix.Munmap(b.B)
	b.B = nil
	if b.file != nil {
		err = errors.Join(err, b.file.Close())
	}
	return err
}

// Addr returns the address of the first byte.
func (b *Buffer) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b.B)))) }

// Desc describes n bytes at offset off, on device 0.
func (b *Buffer) Desc(off, n uint64) Desc { return Desc{Addr: b.Addr() + off, Len: n} }
