package shm

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// vma is a mapping of this process.
type vma struct {
	start, end, offset uint64
	shared, writable   bool
	id                 fileID
	path               string
}

// fileID names a file on this host while the file exists.
type fileID struct {
	major, minor uint32
	inode        uint64
}

func fileIDOf(st *unix.Stat_t) fileID {
	return fileID{unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino} //nolint:unconvert // Dev differs by architecture
}

// ownMaps keeps descriptors of what /proc says of this process's memory: an open and a close would be two thirds of a registration. The
// zero value is ready.
type ownMaps struct {
	mu          sync.Mutex
	pages, maps *os.File
	name        *[unix.PathMax]byte // for the kernel to write to: it must not lie on a stack, which may move
	last        ordinaryMemory
}

// ordinaryMemory is the mapping that the kernel was asked about last, if it is not shared. Applications register many ranges of one
// mapping in a row, and the question takes as long as all the rest of a registration. The answer holds while each range comes within
// burst of the one before. A file that replaces a part of the mapping in that time is not found, and the ring serves it.
type ordinaryMemory struct {
	start, end uint64
	at         time.Duration // of the last range, since began
}

var mapsBegan = time.Now()

const mapsBurst = 20 * time.Microsecond

// holds reports that a range lies in the mapping.
func (p *ordinaryMemory) holds(addr, length uint64, now time.Duration) bool {
	if addr < p.start || addr >= p.end || length > p.end-addr || now-p.at > mapsBurst {
		return false
	}
	p.at = now
	return true
}

func (s *ownMaps) file(f **os.File, path string) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *f == nil {
		*f, _ = os.Open(path) // nil: the next call tries again
	}
	return *f
}

func (s *ownMaps) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.pages.Close(), s.maps.Close() // a nil file may be closed
	s.pages, s.maps = nil, nil
}

// known reports that a range lies in memory that is not shared, by the answer before.
func (s *ownMaps) known(addr, length uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last.holds(addr, length, time.Since(mapsBegan))
}

// note keeps an answer for known.
func (s *ownMaps) note(v *vma) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = ordinaryMemory{v.start, v.end, time.Since(mapsBegan)}
}

// private reports that the page of an address is there and belongs to this process alone, as most registered memory does. A look at all
// mappings is not needed then, where the kernel does not answer about one. Implements pread of /proc/self/pagemap.
func (s *ownMaps) private(addr uint64) bool {
	const present, file = 1 << 63, 1 << 61
	var b [8]byte
	f := s.file(&s.pages, "/proc/self/pagemap")
	if f == nil {
		return false
	}
	if n, err := unix.Pread(int(f.Fd()), b[:], int64(addr/uint64(os.Getpagesize())*8)); err != nil || n != 8 {
		return false
	}
	word := *(*uint64)(unsafe.Pointer(&b))
	return word&present != 0 && word&file == 0
}

// covering finds the mapping that holds an address. Before Linux 6.11 it does not find private memory.
func (s *ownMaps) covering(addr uint64) (vma, bool) {
	const path = "/proc/self/maps"
	if f := s.file(&s.maps, path); f != nil {
		s.mu.Lock()
		if s.name == nil {
			s.name = new([unix.PathMax]byte)
		}
		v, ok, errno := queryMaps(int(f.Fd()), addr, 0, s.name)
		s.mu.Unlock()
		if errno == 0 {
			return v, ok
		}
	}
	if s.private(addr) {
		return vma{}, false
	}
	maps, err := os.Open(path)
	if err != nil {
		return vma{}, false
	}
	defer maps.Close()
	return scanMaps(maps, addr)
}

// procmapQuery is struct procmap_query of linux/fs.h.
type procmapQuery struct {
	size, flags, addr                uint64
	start, end, vmaFlags             uint64
	pageSize, offset, inode          uint64
	major, minor, nameSize, buildIDs uint32
	name, buildID                    uint64
}

// Asks reports that the kernel answers questions about single mappings, so that an owner can tell cheaply whether a range is still the
// file that peers have mapped (Linux 6.11). known is false if this process could not ask: it has no descriptor left, say.
func (t *fileTable) Asks() (answers, known bool) {
	_, _, errno := t.self.around(uint64(uintptr(unsafe.Pointer(t))))
	return errno == 0, errno == 0 || errno == unix.ENOTTY
}

// around is the mapping that holds an address, or else (ok is false) the gap there. An errno says that the kernel was not asked, or
// cannot tell.
func (s *ownMaps) around(addr uint64) (v vma, ok bool, errno unix.Errno) {
	f := s.file(&s.maps, "/proc/self/maps")
	if f == nil {
		return vma{}, false, unix.EMFILE
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.name == nil {
		s.name = new([unix.PathMax]byte)
	}
	v, ok, errno = queryMaps(int(f.Fd()), addr, procmapNext, s.name)
	switch {
	case errno != 0 || ok && v.start <= addr:
		return v, ok, errno
	case ok:
		return vma{start: addr, end: v.start}, false, 0
	}
	return vma{start: addr, end: ^uint64(0)}, false, 0
}

const (
	procmapIoctl = 3<<30 | unsafe.Sizeof(procmapQuery{})<<16 | 'f'<<8 | 17
	procmapNext  = 16 // or the next mapping
	vmaWritable  = 2
	vmaShared    = 8
)

// queryMaps asks the kernel for one mapping. Before Linux 6.11 errno is ENOTTY. Implements PROCMAP_QUERY.
func queryMaps(maps int, addr, flags uint64, name *[unix.PathMax]byte) (v vma, ok bool, errno unix.Errno) {
	q := procmapQuery{size: uint64(unsafe.Sizeof(procmapQuery{})), flags: flags, addr: addr, nameSize: uint32(len(name)), name: uint64(uintptr(unsafe.Pointer(&name[0])))}
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(maps), procmapIoctl, uintptr(unsafe.Pointer(&q)))
	switch errno {
	case 0:
	case unix.ENOENT:
		return vma{}, false, 0
	default:
		return vma{}, false, errno
	}
	v = vma{start: q.start, end: q.end, offset: q.offset, shared: q.vmaFlags&vmaShared != 0, writable: q.vmaFlags&vmaWritable != 0,
		id: fileID{q.major, q.minor, q.inode}}
	if n := int(q.nameSize); n > 1 && n <= len(name) {
		v.path = string(name[:n-1])
	}
	return v, true, 0
}

// mostMaps bounds the bytes that scan reads: some 40,000 mappings, 15 ms.
const mostMapsRead = 4 << 20

// scanMaps reads the list of mappings, which is in order of addresses.
func scanMaps(maps *os.File, addr uint64) (v vma, ok bool) {
	var rest string
	b := make([]byte, 64<<10)
	for read := 0; read < mostMapsRead; {
		n, err := maps.Read(b)
		if n == 0 || err != nil {
			return vma{}, false
		}
		read += n
		rest += string(b[:n])
		for {
			line, more, whole := strings.Cut(rest, "\n")
			if !whole {
				break
			}
			rest = more
			if v, ok = parseMaps(line); ok && addr < v.end {
				return v, addr >= v.start
			}
		}
	}
	return vma{}, false
}

// parseMaps reads a line of /proc/self/maps.
func parseMaps(line string) (v vma, ok bool) {
	var perms string
	n, err := fmt.Sscanf(line, "%x-%x %s %x %x:%x %d", &v.start, &v.end, &perms, &v.offset, &v.id.major, &v.id.minor, &v.id.inode)
	if err != nil || n != 7 || len(perms) != 4 {
		return vma{}, false
	}
	if i := strings.IndexByte(line, '/'); i >= 0 {
		v.path = line[i:]
	}
	v.writable, v.shared = perms[1] == 'w', perms[3] == 's'
	return v, true
}

// open opens the file of a mapping, and no other file. Of the mapping itself it needs privileges; of another descriptor of this process,
// or of the path, it does not. -1: none of these leads to the file.
func (v *vma) open(write bool) int {
	for _, path := range []string{fmt.Sprintf("/proc/self/map_files/%x-%x", v.start, v.end), v.path} {
		if !strings.HasPrefix(path, "/") {
			continue
		}
		if fd := reopenFile(path, v.id, write); fd >= 0 {
			return fd
		}
	}
	return v.ofDescriptors(write)
}

// ofDescriptors looks for the file among the open files of this process.
func (v *vma) ofDescriptors(write bool) int {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return -1
	}
	defer dir.Close()
	const most = 1 << 16
	names, _ := dir.Readdirnames(most)
	for _, name := range names {
		var st unix.Stat_t
		n, err := strconv.Atoi(name)
		if err != nil || unix.Fstat(n, &st) != nil || fileIDOf(&st) != v.id {
			continue
		}
		if fd := reopenFile("/proc/self/fd/"+name, v.id, write); fd >= 0 {
			return fd
		}
	}
	return -1
}

// reopenFile opens the file at a path if it is that one: an open file of its own, with a position of its own. O_PATH has no effect on
// another file that the path may lead to.
func reopenFile(path string, want fileID, write bool) int {
	at, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if unix.Fstat(at, &st) != nil || fileIDOf(&st) != want || !isMemoryFile(at, &st) {
		return -1
	}
	return reopenAgain(at, write)
}

// reopenAgain opens a file once more. -1: it cannot be opened that way.
func reopenAgain(fd int, write bool) int {
	mode := unix.O_RDONLY
	if write {
		mode = unix.O_RDWR
	}
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), mode|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return again
}

// isMemoryFile reports a file of tmpfs or hugetlbfs.
func isMemoryFile(fd int, st *unix.Stat_t) bool {
	var fs unix.Statfs_t
	return st.Mode&unix.S_IFMT == unix.S_IFREG && unix.Fstatfs(fd, &fs) == nil && (fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.HUGETLBFS_MAGIC)
}
