package ofi

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// openFiles is the folder of the process's descriptors, kept open: there may be no descriptor left to open it with. One goroutine at a time.
type openFiles struct{ dir int }

var noFiles = openFiles{-1}

func listOpenFiles() (openFiles, error) {
	dir, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return noFiles, err
	}
	return openFiles{dir}, nil
}

// each calls f with every descriptor, until f is false.
func (o openFiles) each(f func(fd int) bool) error {
	if _, err := unix.Seek(o.dir, 0, unix.SEEK_SET); err != nil {
		return err
	}
	buf := make([]byte, 16<<10)
	var names []string
	for {
		n, err := unix.ReadDirent(o.dir, buf)
		if n <= 0 || err != nil {
			return err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names[:0])
		for _, name := range names {
			if fd, err := strconv.Atoi(name); err == nil && !f(fd) {
				return nil
			}
		}
	}
}

// lowestFree is the descriptor that the process gets next, or -1.
func (o openFiles) lowestFree() int {
	fd, err := unix.FcntlInt(uintptr(o.dir), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	unix.Close(fd)
	return fd
}

func (o openFiles) close() {
	if o.dir >= 0 {
		unix.Close(o.dir)
	}
}
