package hostmem

import (
	"errors"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/nixlapi"
)

// Access is what a process may do with memory.
type Access int

// Accesses.
const (
	None      Access = 0
	ReadOnly  Access = 1
	ReadWrite Access = 3
)

// Odd is a kind of memory, and what its owner does to it while it is registered.
type Odd struct {
	Name          string
	Before, After Access                // of the whole memory
	At            func(n uint64) uint64 // of n bytes, one that changes
	make          func(content []byte) (*Object, error)
	change        func(m *Object) error
}

// Object is memory of an odd kind.
type Object struct {
	*nixlapi.Buffer
	fd int // of its file; -1: none
}

const (
	page  = 4096
	rw    = unix.PROT_READ | unix.PROT_WRITE
	ro    = unix.PROT_READ
	anon  = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	share = unix.MAP_SHARED
	own   = unix.MAP_PRIVATE
)

func start(uint64) uint64                 { return 0 }
func middle(n uint64) uint64              { return n / 2 }
func last(n uint64) uint64                { return n - page }
func nothing(*Object) error               { return nil }
func (m *Object) half() int               { return len(m.B) / 2 }
func (m *Object) at(i int) unsafe.Pointer { return unsafe.Pointer(&m.B[i]) }

var lonelies atomic.Uintptr

// lonely is an address far from all that the kernel maps by itself. What is unmapped there stays free.
func lonely() unsafe.Pointer {
	const from, step = 0x300000000000, 1 << 30
	at := from + step*lonelies.Add(1)
	return *(*unsafe.Pointer)(unsafe.Pointer(&at))
}

// mapped maps memory with the content. flags: of mmap. fd -1: no file.
func mapped(content []byte, fd, prot, flags int) (*Object, error) {
	b, err := unix.MmapPtr(fd, 0, lonely(), uintptr(len(content)), prot, flags|unix.MAP_FIXED_NOREPLACE)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	m := &Object{&nixlapi.Buffer{B: unsafe.Slice((*byte)(b), len(content))}, fd}
	if fd < 0 && prot&unix.PROT_WRITE != 0 {
		copy(m.B, content)
	}
	return m, nil
}

func anonymous(content []byte) (*Object, error) { return mapped(content, -1, rw, anon) }

// of maps a file with the content: of the system's folder for temporary files, or of memory.
func of(disk bool, prot, flags int) func([]byte) (*Object, error) {
	return func(content []byte) (*Object, error) {
		fd, err := unix.MemfdCreate(SharedName, unix.MFD_CLOEXEC)
		if disk {
			var f *os.File
			if f, err = os.CreateTemp("", "odd"); err == nil {
				fd, err = unix.Dup(int(f.Fd()))
				err = errors.Join(err, f.Close(), os.Remove(f.Name()))
			}
		}
		if err != nil {
			return nil, err
		}
		if _, err := unix.Pwrite(fd, content, 0); err != nil {
			return nil, err
		}
		return mapped(content, fd, prot, flags)
	}
}

func huge2M(content []byte) (*Object, error) {
	m, err := mapped(make([]byte, len(content)+2<<20), -1, rw, anon)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(m.B, unix.MADV_HUGEPAGE)
	m.B = m.B[:len(content)]
	copy(m.B, content)
	return m, nil
}

func attached(content []byte) (*Object, error) {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, len(content), 0o600)
	if err != nil {
		return nil, err
	}
	b, err := unix.SysvShmAttach(id, uintptr(lonely()), 0)
	_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
	if err != nil {
		return nil, err
	}
	copy(b, content)
	return &Object{&nixlapi.Buffer{B: b}, -1}, nil
}

func unmap(from, n func(m *Object) int) func(*Object) error {
	return func(m *Object) error { return unix.MunmapPtr(m.at(from(m)), uintptr(n(m))) }
}

func protect(from, n func(m *Object) int, prot int) func(*Object) error {
	return func(m *Object) error { return unix.Mprotect(m.B[from(m):from(m)+n(m)], prot) }
}

func truncate(n func(m *Object) int) func(*Object) error {
	return func(m *Object) error { return unix.Ftruncate(m.fd, int64(n(m))) }
}

// anew maps other memory, with other content, at the addresses.
func anew(m *Object) error {
	_, err := unix.MmapPtr(-1, 0, m.at(0), uintptr(len(m.B)), rw, anon|unix.MAP_FIXED)
	return err
}

func anewFile(m *Object) error {
	fd, err := sharedFile(len(m.B))
	if err == nil {
		_, err = unix.MmapPtr(fd, 0, m.at(0), uintptr(len(m.B)), rw, share|unix.MAP_FIXED)
	}
	return err
}

func dropped(m *Object) error { return unix.Madvise(m.B, unix.MADV_DONTNEED) }

func zero(*Object) int     { return 0 }
func one(*Object) int      { return page }
func all(m *Object) int    { return len(m.B) }
func half(m *Object) int   { return m.half() }
func before(m *Object) int { return len(m.B) - page }

// Odds are the odd kinds.
var Odds = []Odd{
	{"anonymous", ReadWrite, ReadWrite, middle, anonymous, nothing},
	{"huge pages", ReadWrite, ReadWrite, middle, huge2M, nothing},
	{"shared file", ReadWrite, ReadWrite, middle, of(true, rw, share), nothing},
	{"private file", ReadWrite, ReadWrite, middle, of(true, rw, own), nothing},
	{"private memfd", ReadWrite, ReadWrite, middle, of(false, rw, own), nothing},
	{"shared file for reading", ReadOnly, ReadOnly, middle, of(true, ro, share), nothing},
	{"private file for reading", ReadOnly, ReadOnly, middle, of(true, ro, own), nothing},
	{"memfd for reading", ReadOnly, ReadOnly, middle, of(false, ro, share), nothing},
	{"no access", None, None, middle, func(c []byte) (*Object, error) { return mapped(c, -1, unix.PROT_NONE, anon) }, nothing},
	{"unmapped", ReadWrite, None, middle, anonymous, unmap(zero, all)},
	{"first page unmapped", ReadWrite, None, start, anonymous, unmap(zero, one)},
	{"middle page unmapped", ReadWrite, None, middle, anonymous, unmap(half, one)},
	{"last page unmapped", ReadWrite, None, last, anonymous, unmap(before, one)},
	{"memfd unmapped", ReadWrite, None, middle, of(false, rw, share), unmap(zero, all)},
	{"file unmapped", ReadWrite, None, middle, of(true, rw, share), unmap(half, half)},
	{"System V memory detached", ReadWrite, None, middle, attached, func(m *Object) error { return unix.SysvShmDetach(m.B) }},
	{"file truncated", ReadWrite, None, middle, of(true, rw, share), truncate(half)},
	{"private file truncated", ReadOnly, None, middle, of(true, ro, own), truncate(half)},
	{"memfd truncated", ReadWrite, None, middle, of(false, rw, share), truncate(half)},
	{"memfd truncated to nothing", ReadWrite, None, middle, of(false, rw, share), truncate(zero)},
	{"guard page", ReadWrite, None, middle, anonymous, protect(half, one, unix.PROT_NONE)},
	{"protected", ReadWrite, None, middle, anonymous, protect(zero, all, unix.PROT_NONE)},
	{"made read-only", ReadWrite, ReadOnly, middle, anonymous, protect(zero, all, ro)},
	{"a page made read-only", ReadWrite, ReadOnly, middle, anonymous, protect(half, one, ro)},
	{"memfd made read-only", ReadWrite, ReadOnly, middle, of(false, rw, share), protect(zero, all, ro)},
	{"dropped", ReadWrite, ReadWrite, middle, anonymous, dropped},
	{"mapped anew", ReadWrite, ReadWrite, middle, anonymous, anew},
	{"memfd mapped anew", ReadWrite, ReadWrite, middle, of(false, rw, share), anewFile},
}

// New makes memory of the kind. The mapping is the caller's until the process ends.
func (o Odd) New(content []byte) (*Object, error) { return o.make(content) }

// Change does to the memory what its kind says.
func (o Odd) Change(m *Object) error { return o.change(m) }
