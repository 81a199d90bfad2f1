package sockets

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// Files is the process's descriptor directory. It stays open, because later no descriptor may be left to open it. Not
// safe for concurrent use.
type Files struct{ dir int }

// NoFiles is a directory that is not open: it lists nothing.
var NoFiles = Files{-1}

// OpenFiles implements open of /proc/self/fd. The error is an errno.
func OpenFiles() (Files, error) {
	dir, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return NoFiles, err
	}
	return Files{dir}, nil
}

// Each calls visit with every descriptor until visit returns false.
func (f Files) Each(visit func(fd int) bool) error {
	if _, err := unix.Seek(f.dir, 0, unix.SEEK_SET); err != nil {
		return err
	}
	buf := make([]byte, 16<<10)
	var names []string
	for {
		n, err := unix.ReadDirent(f.dir, buf)
		if n <= 0 || err != nil {
			return err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if fd, err := strconv.Atoi(name); err == nil && !visit(fd) {
				return nil
			}
		}
	}
}

// LowestFree returns the descriptor that the process gets next, or -1.
func (f Files) LowestFree() int {
	fd, err := unix.FcntlInt(uintptr(f.dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	unix.Close(fd)
	return fd
}

// Close closes the directory.
func (f Files) Close() {
	if f.dir >= 0 {
		unix.Close(f.dir)
	}
}

// Exhausted reports whether the process has used all its descriptors.
func Exhausted() bool {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return err == unix.EMFILE
}
