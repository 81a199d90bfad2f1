package files

import (
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mapping is a range of a peer's file, mapped here. The peer can take its pages away: an access may raise SIGBUS.
type Mapping struct {
	At       unsafe.Pointer // of the range's first byte
	Writable bool
	// Dev (major << 32 | minor), Inode and Offset name the file and the range's place in it, as the kernel names them in /proc/self/maps.
	Dev, Inode, Offset uint64

	mem  unsafe.Pointer
	size uintptr
}

// ErrHole means that a part of a range has no memory yet. A process that mapped the range and wrote there would pay for memory of the
// owner's: the kernel charges a page to the memory cgroup of the process that touches it first.
var ErrHole = errors.New("the owner has not touched all of the memory")

// Map maps a range of a peer's file, for reading alone if the file does not allow more. The caller keeps fd. EPROTO: not a file of tmpfs or
// hugetlbfs with all of the range. ErrHole. Implements mmap and lseek (SEEK_HOLE).
func Map(fd int, offset, length uint64) (*Mapping, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if !inMemory(fd, &st) || unix.Fstatfs(fd, &fs) != nil {
		return nil, unix.EPROTO
	}
	unit, size := uint64(os.Getpagesize()), uint64(st.Size)
	if fs.Type == unix.HUGETLBFS_MAGIC {
		unit = uint64(fs.Bsize)
	}
	if st.Size < 0 || length == 0 || offset+length < offset || offset+length > (size+unit-1)/unit*unit {
		return nil, unix.EPROTO
	}
	if hole, err := unix.Seek(fd, int64(offset), unix.SEEK_HOLE); err == nil && uint64(hole) < min(offset+length, size) {
		return nil, ErrHole
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	from := offset / unit * unit
	m := &Mapping{size: uintptr((offset + length - from + unit - 1) / unit * unit)}
	for _, prot := range []int{unix.PROT_READ | unix.PROT_WRITE, unix.PROT_READ} { // a sealed file is not mapped for writing
		if m.Writable = prot&unix.PROT_WRITE != 0; m.Writable && flags&unix.O_ACCMODE != unix.O_RDWR {
			continue
		}
		if m.mem, err = unix.MmapPtr(fd, int64(from), nil, m.size, prot, unix.MAP_SHARED|unix.MAP_NORESERVE); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(unsafe.Slice((*byte)(m.mem), m.size), unix.MADV_DONTDUMP)
	m.At = unsafe.Add(m.mem, offset-from)
	is := idOf(&st)
	m.Dev, m.Inode, m.Offset = uint64(is.major)<<32|uint64(is.minor), is.inode, offset
	return m, nil
}

// Close unmaps the range.
func (m *Mapping) Close() { _ = unix.MunmapPtr(m.mem, m.size) }
