package shm

import (
	"errors"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
)

const (
	// leastMapped is the size of a region, in bytes, whose file is worth a mapping at each peer.
	leastMapped = 64 << 10
	// mostFiles bounds the descriptors that a fileTable keeps.
	mostFiles = 256
)

// fileTable keeps a descriptor of each file whose memory is registered. The zero value is ready. It is safe for concurrent use.
type fileTable struct {
	self    ownMaps
	refused refusedFiles // of looks, which come one after the other

	mu   sync.Mutex
	open map[openFile]*heldFile
}

type openFile struct {
	fileID
	write bool // peers may write
}

type heldFile struct{ fd, users int }

// memoryFile is a range of registered memory that lies in one file.
type memoryFile struct {
	Offset uint64 // of its first byte

	from *fileTable
	of   openFile
	fd   int
}

// Private reports that Find finds no file for a range, as far as is known without asking the kernel.
func (t *fileTable) Private(addr, length uint64) bool {
	return length < leastMapped || t.self.known(addr, length)
}

// Find finds the file of a range. nil: the range is private memory, or lies in several mappings, or is not of tmpfs or hugetlbfs, or
// no descriptor and no path leads to the file. later: it may be found later, because this process has too many descriptors open now. write:
// peers may write. The caller closes the File when the range is no longer registered, or is another file. Implements PROCMAP_QUERY, or a
// read of /proc/self/maps.
func (t *fileTable) Find(addr, length uint64, write bool) (f *memoryFile, later bool) {
	if t.Private(addr, length) {
		return nil, false
	}
	v, ok := t.self.covering(addr)
	if !ok {
		return nil, false
	}
	if !v.shared {
		t.self.note(&v)
	}
	if !v.holds(addr, length) {
		return nil, false
	}
	if f = t.of(&v, addr, write); f == nil {
		return nil, t.full() || host.NoDescriptorLeft()
	}
	return f, false
}

// holds reports that a range lies in a mapping of a file.
func (v *vma) holds(addr, length uint64) bool {
	return v.shared && v.id.inode != 0 && addr+length >= addr && addr+length <= v.end
}

// of is the file of a mapping, from addr on; nil: it cannot be opened. For reading alone if need be: WRITEs then take the ring.
func (t *fileTable) of(v *vma, addr uint64, write bool) *memoryFile {
	f := &memoryFile{Offset: v.offset + addr - v.start, from: t}
	for _, w := range []bool{true, false} {
		if w && !(write && v.writable) {
			continue
		}
		f.of = openFile{v.id, w}
		if t.hold(f, -1) {
			return f
		}
		if t.full() {
			continue
		}
		if fd := v.open(w); fd >= 0 && t.hold(f, fd) { // without mu: it may look at all descriptors
			return f
		}
	}
	return nil
}

func (t *fileTable) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open) >= mostFiles
}

// hold makes f a user of its file's descriptor. fd becomes that descriptor if there is none yet; -1: none does. False: there is none.
func (t *fileTable) hold(f *memoryFile, fd int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.open[f.of]
	switch {
	case h != nil && fd >= 0, h == nil && len(t.open) >= mostFiles && fd >= 0: // another range was faster
		_ = unix.Close(fd)
	case h == nil && fd >= 0:
		if t.open == nil {
			t.open = map[openFile]*heldFile{}
		}
		h = &heldFile{fd: fd}
		t.open[f.of] = h
	}
	if h == nil {
		return false
	}
	h.users++
	f.fd = h.fd
	return true
}

// Close ends the use of the table. Files that are not closed stay open.
func (t *fileTable) Close() { t.self.close() }

// Open opens the file for a peer. The caller closes fd. -1: out of descriptors.
func (f *memoryFile) Open() int { return reopenAgain(f.fd, f.of.write) }

// Close ends the use of the file. The memory stays.
func (f *memoryFile) Close() {
	t := f.from
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.open[f.of]
	if h.users--; h.users == 0 {
		_ = unix.Close(h.fd)
		delete(t.open, f.of)
	}
}

// fileLook looks at many ranges, in the order of their addresses: one question to the kernel serves all ranges of a mapping, and of a gap
// between mappings. Looks of a table come one after the other.
type fileLook struct {
	Asked int // questions so far

	t    *fileTable
	last vma // the last answer
	ok   bool
}

// Look begins a look.
func (t *fileTable) Look() *fileLook { return &fileLook{t: t} }

// at is the mapping, or else the gap (ok is false), that holds an address. known is false if the kernel was not asked.
func (l *fileLook) at(addr uint64) (v *vma, ok, known bool) {
	if addr >= l.last.start && addr < l.last.end {
		return &l.last, l.ok, true
	}
	l.Asked++
	got, ok, errno := l.t.self.around(addr)
	if errno != 0 {
		return nil, false, false
	}
	l.last, l.ok = got, ok
	return &l.last, ok, true
}

// same reports that all of a range is still the file, at that place. It may lie in several mappings of the file by now.
func (l *fileLook) same(f *memoryFile, addr, length uint64) (same, known bool) {
	for at := addr; at < addr+length; {
		v, ok, known := l.at(at)
		if !known {
			return false, false
		}
		if !ok || !v.shared || v.id != f.of.fileID || v.offset+(at-v.start) != f.Offset+(at-addr) {
			return false, true
		}
		at = v.end
	}
	return true, true
}

// Now returns the file that a range is now: f if it is still that one, or if this process cannot tell; another one, which is as those of
// Find; or nil. f may be nil.
func (l *fileLook) Now(f *memoryFile, addr, length uint64, write bool) *memoryFile {
	if f != nil {
		if same, known := l.same(f, addr, length); same || !known {
			return f
		}
	}
	v, ok, known := l.at(addr)
	if !known {
		return f
	}
	if !ok || !v.holds(addr, length) || l.t.refused.rests(v.id) {
		return nil
	}
	began := time.Now()
	now := l.t.of(v, addr, write)
	if now == nil {
		l.t.refused.note(v.id, time.Since(began))
	}
	return now
}

// refusedFiles are the files that could not be opened in a look, and when to try again: a hundredth of a processor is enough for that.
type refusedFiles map[fileID]time.Time

const (
	refusedTimes = 100
	refusedMost  = 5 * time.Second
)

func (r refusedFiles) rests(file fileID) bool {
	until, ok := r[file]
	return ok && time.Now().Before(until)
}

func (r *refusedFiles) note(file fileID, took time.Duration) {
	if *r == nil || len(*r) > mostFiles {
		*r = refusedFiles{}
	}
	(*r)[file] = time.Now().Add(min(refusedMost, refusedTimes*took))
}

// fileMapping is a range of a peer's file, mapped here. The peer can take its pages away: an access may raise SIGBUS.
type fileMapping struct {
	At       unsafe.Pointer // of the range's first byte
	Writable bool
	// Dev (major << 32 | minor), Inode and Offset name the file and the range's place in it, as the kernel names them in /proc/self/maps.
	Dev, Inode, Offset uint64

	mem  unsafe.Pointer
	size uintptr
}

// errHole means that a part of a range has no memory yet. A process that mapped the range and wrote there would pay for memory of the
// owner's: the kernel charges a page to the memory cgroup of the process that touches it first.
var errHole = errors.New("the owner has not touched all of the memory")

// mapFile maps a range of a peer's file, for reading alone if the file does not allow more. The caller keeps fd. EPROTO: not a file of tmpfs or
// hugetlbfs with all of the range. ErrHole. Implements mmap and lseek (SEEK_HOLE).
func mapFile(fd int, offset, length uint64) (*fileMapping, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if !isMemoryFile(fd, &st) || unix.Fstatfs(fd, &fs) != nil {
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
		return nil, errHole
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	from := offset / unit * unit
	m := &fileMapping{size: uintptr((offset + length - from + unit - 1) / unit * unit)}
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
	is := fileIDOf(&st)
	m.Dev, m.Inode, m.Offset = uint64(is.major)<<32|uint64(is.minor), is.inode, offset
	return m, nil
}

// Close unmaps the range.
func (m *fileMapping) Close() { _ = unix.MunmapPtr(m.mem, m.size) }
