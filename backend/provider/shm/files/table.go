package files

import (
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// Least is the size of a region, in bytes, whose file is worth a mapping at each peer.
	Least = 64 << 10
	// most bounds the descriptors that a Table keeps.
	most = 256
)

// Table keeps a descriptor of each file whose memory is registered. The zero value is ready. It is safe for concurrent use.
type Table struct {
	self    self
	refused refused // of looks, which come one after the other

	mu   sync.Mutex
	open map[of]*held
}

type of struct {
	id
	write bool // peers may write
}

type held struct{ fd, users int }

// File is a range of registered memory that lies in one file.
type File struct {
	Offset uint64 // of its first byte

	from *Table
	of   of
	fd   int
}

// Private reports that Find finds no file for a range, as far as is known without asking the kernel.
func (t *Table) Private(addr, length uint64) bool {
	return length < Least || t.self.known(addr, length)
}

// Find finds the file of a range. nil: the range is private memory, or lies in several mappings, or is not of tmpfs or hugetlbfs, or
// no descriptor and no path leads to the file. later: it may be found later, because this process has too many descriptors open now. write:
// peers may write. The caller closes the File when the range is no longer registered, or is another file. Implements PROCMAP_QUERY, or a
// read of /proc/self/maps.
func (t *Table) Find(addr, length uint64, write bool) (f *File, later bool) {
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
		return nil, t.full() || exhausted()
	}
	return f, false
}

// holds reports that a range lies in a mapping of a file.
func (v *vma) holds(addr, length uint64) bool {
	return v.shared && v.id.inode != 0 && addr+length >= addr && addr+length <= v.end
}

// exhausted reports that this process can open no file.
func exhausted() bool {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	_ = unix.Close(fd)
	return false
}

// of is the file of a mapping, from addr on; nil: it cannot be opened. For reading alone if need be: WRITEs then take the ring.
func (t *Table) of(v *vma, addr uint64, write bool) *File {
	f := &File{Offset: v.offset + addr - v.start, from: t}
	for _, w := range []bool{true, false} {
		if w && !(write && v.writable) {
			continue
		}
		f.of = of{v.id, w}
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

func (t *Table) full() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open) >= most
}

// hold makes f a user of its file's descriptor. fd becomes that descriptor if there is none yet; -1: none does. False: there is none.
func (t *Table) hold(f *File, fd int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.open[f.of]
	switch {
	case h != nil && fd >= 0, h == nil && len(t.open) >= most && fd >= 0: // another range was faster
		_ = unix.Close(fd)
	case h == nil && fd >= 0:
		if t.open == nil {
			t.open = map[of]*held{}
		}
		h = &held{fd: fd}
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
func (t *Table) Close() { t.self.close() }

// Open opens the file for a peer. The caller closes fd. -1: out of descriptors.
func (f *File) Open() int { return Again(f.fd, f.of.write) }

// Close ends the use of the file. The memory stays.
func (f *File) Close() {
	t := f.from
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.open[f.of]
	if h.users--; h.users == 0 {
		_ = unix.Close(h.fd)
		delete(t.open, f.of)
	}
}
