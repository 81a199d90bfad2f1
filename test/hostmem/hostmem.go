// Package hostmem maps the kinds of host memory that applications register.
package hostmem

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/nixlapi"
)

// Kind is the kind of memory behind a buffer.
type Kind int

// Kinds of memory.
const (
	Anon    Kind = iota // private anonymous pages
	Reserve             // address space only: PROT_NONE, never touched
	Tiled               // many addresses over few pages, see Windows
	Shared              // a memfd of the name SharedName, which stays open
	Pinned              // private anonymous pages at FixedAt, one buffer a process
)

// FixedAt is an address at which the kernel puts nothing by itself.
const FixedAt = 0x200000000000

// SharedName is the name of shared memory in /proc/PID/maps.
const SharedName = "gorail-test-shared"

// huge is the smallest size of a buffer that asks for huge pages.
const huge = 4 << 20

// Alloc maps size bytes.
func Alloc(size int, kind Kind) (*nixlapi.Buffer, error) {
	var b []byte
	var err error
	switch kind {
	case Tiled:
		b, err = tiled(size)
	case Shared:
		b, err = shared(size)
	case Pinned:
		b, err = fixed(size)
	case Reserve:
		b, err = unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	default:
		buf, err := nixlapi.Alloc(size)
		if err == nil && size >= huge {
			_ = unix.Madvise(buf.B, unix.MADV_HUGEPAGE) // page faults were a tenth of the end-to-end tests' CPU time
		}
		return buf, err
	}
	if err != nil {
		return nil, err
	}
	return &nixlapi.Buffer{B: b}, nil
}

// Renew maps new pages of the same kind, Anon or Shared, at the addresses of a buffer.
func Renew(b *nixlapi.Buffer, kind Kind) error {
	fd, flags := -1, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS
	if kind == Shared {
		var err error
		if fd, err = sharedFile(len(b.B)); err != nil {
			return err
		}
		flags = unix.MAP_SHARED
	}
	at := unsafe.Pointer(unsafe.SliceData(b.B))
	_, err := unix.MmapPtr(fd, 0, at, uintptr(len(b.B)), unix.PROT_READ|unix.PROT_WRITE, flags|unix.MAP_FIXED)
	return err
}

// fixed maps size bytes at FixedAt.
func fixed(size int) ([]byte, error) {
	at := uintptr(FixedAt)
	p, err := unix.MmapPtr(-1, 0, *(*unsafe.Pointer)(unsafe.Pointer(&at)), uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*byte)(p), size), nil
}

// shared maps size bytes of a new memfd.
func shared(size int) ([]byte, error) {
	fd, err := sharedFile(size)
	if err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func sharedFile(size int) (fd int, err error) {
	fd, err = unix.MemfdCreate(SharedName, unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, int64(size))
	}
	return fd, err
}
