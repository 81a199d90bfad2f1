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
	self self

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
// no descriptor and no path leads to the file. write: peers may write. The caller closes the File when the range is no longer
// registered; until then the range must stay mapped as it is. Implements PROCMAP_QUERY, or a read of /proc/self/maps.
func (t *Table) Find(addr, length uint64, write bool) *File {
	if length < Least {
		return nil
	}
	if t.self.known(addr, length) {
		return nil
	}
	v, ok := t.self.covering(addr)
	if ok && !v.shared {
		t.self.note(&v)
	}
	if !ok || !v.shared || v.id.inode == 0 || addr+length > v.end {
		return nil
	}
	f := &File{Offset: v.offset + addr - v.start, from: t, of: of{v.id, write && v.writable}}
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.open[f.of]
	if h == nil {
		if len(t.open) == most {
			return nil
		}
		fd := v.open(f.of.write)
		if fd < 0 && f.of.write { // WRITEs then take the ring
			f.of.write = false
			fd = v.open(false)
		}
		if fd < 0 {
			return nil
		}
		if t.open == nil {
			t.open = map[of]*held{}
		}
		if h = t.open[f.of]; h != nil { // for reading, from a File before
			_ = unix.Close(fd)
		} else {
			h = &held{fd: fd}
			t.open[f.of] = h
		}
	}
	h.users++
	f.fd = h.fd
	return f
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
