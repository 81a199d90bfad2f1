package statsfile

import (
	"fmt"

	"golang.org/x/sys/unix"

	"gorail/backend/safepath"
)

// An engine may run as root and write into a folder of another user. That user must not choose which other file is
// written: by a symbolic link, in place of the file or of a folder on the way to it, or by a hard link.

// openFlags are those of all files that are opened for writing.
const openFlags = unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC

// walk is a folder that was reached.
type walk struct{ *safepath.Walk }

// follow is safepath.Follow.
func follow(path string) (w walk, name string, err error) {
	w.Walk, name, err = safepath.Follow(path)
	return w, name, err
}

// open opens the file of a name for writing, with more flags. The file keeps its content. Implements openat.
func (w walk) open(name string, more int) (fd int, err error) {
	if fd, err = unix.Openat(w.Fd(), name, openFlags|more, 0o644); err != nil {
		return -1, err
	}
	if err = w.oneName(fd); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// oneName refuses a file with several names (hard links) that another user may have made: the name may be that of any file of the file system.
// Without sysctl fs.protected_hardlinks users may link files of others, ours among them.
func (w walk) oneName(fd int) error {
	var s, folder unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return err
	}
	if s.Mode&unix.S_IFMT != unix.S_IFREG || s.Nlink <= 1 {
		return nil
	}
	own := uint32(unix.Geteuid())
	if s.Uid != own {
		return fmt.Errorf("the file has %d names (hard links) and belongs to user %d: name another file", s.Nlink, s.Uid)
	}
	if err := unix.Fstat(w.Fd(), &folder); err != nil {
		return err
	}
	if folder.Uid != own && folder.Uid != 0 || folder.Mode&unix.S_IWOTH != 0 {
		return fmt.Errorf("the file has %d names (hard links), and other users make files in %s: name another file", s.Nlink, w.Path())
	}
	return nil
}
