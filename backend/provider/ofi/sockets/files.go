package sockets

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// Files is the folder of the process's descriptors, kept open: there may be no descriptor left to open it with. One goroutine at a time.
type Files struct{ dir int }

// NoFiles lists nothing: a folder that is not open.
var NoFiles = Files{-1}

// OpenFiles implements open of /proc/self/fd. The error is an errno.
func OpenFiles() (Files, error) {
	dir, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return NoFiles, err
	}
	return Files{dir}, nil
}

// Each calls visit with every descriptor, until visit is false.
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

// LowestFree is the descriptor that the process gets next, or -1.
func (f Files) LowestFree() int {
	fd, err := unix.FcntlInt(uintptr(f.dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	unix.Close(fd)
	return fd
}

// Close closes the folder.
func (f Files) Close() {
	if f.dir >= 0 {
		unix.Close(f.dir)
	}
}

// Exhausted says whether the process has used up its descriptors.
func Exhausted() bool {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return err == unix.EMFILE
}
