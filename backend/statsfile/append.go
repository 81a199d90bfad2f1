package statsfile

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Append opens a path to append lines to, by the rules of Check and Write: symbolic links of other users are not followed. Of an
// own descriptor it makes another, because the host may close its own and get the number for something else; standard output
// and error stay as they are. The caller keeps the descriptor for as long as the process lives.
func Append(path string) (fd int, err error) {
	if fd, ok := descriptor(path); ok {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY {
			err = errors.New("the descriptor is open for reading only")
		}
		if err == nil && fd > 2 {
			fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		}
		return fd, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return -1, err
	}
	w, name, err := follow(path)
	if err != nil {
		return -1, fmt.Errorf("folder %s: %w", filepath.Dir(path), err)
	}
	defer w.Close()
	if fd, err = w.open(name, unix.O_CREAT|unix.O_APPEND); err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	var s unix.Stat_t
	err = unix.Fstat(fd, &s)
	if kind := s.Mode & unix.S_IFMT; err == nil && kind != unix.S_IFREG && kind != unix.S_IFCHR {
		err = errors.New("it is neither a file nor a terminal")
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
