package statsfile

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// An engine may run as root and write into a folder of another user. That user must not choose which other file is
// written: by a symbolic link, in place of the file or of a folder on the way to it, or by a hard link.

// maxLinks is the number of symbolic links that a path may have, as in the kernel.
const maxLinks = 40

// openFlags are those of all files that are opened for writing.
const openFlags = unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC

// open opens the file of a name for writing, with more flags. The file keeps its content. Implements openat.
func (w *walk) open(name string, more int) (fd int, err error) {
	if fd, err = unix.Openat(w.at, name, openFlags|more, 0o644); err != nil {
		return -1, err
	}
	if err = oneName(fd); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// oneName refuses another user's file with several names: the name may be a hard link to any file of the file system.
func oneName(fd int) error {
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		return err
	}
	if s.Mode&unix.S_IFMT == unix.S_IFREG && s.Nlink > 1 && s.Uid != uint32(unix.Geteuid()) {
		return fmt.Errorf("the file has %d names (hard links) and belongs to user %d: name another file", s.Nlink, s.Uid)
	}
	return nil
}

// walk goes through the folders of an absolute path.
type walk struct {
	at    int // descriptor of the folder that was reached
	links int // symbolic links that were followed
}

// follow goes to the last folder of an absolute path. name is the file in it, and no symbolic link. The caller closes
// the walk.
func follow(path string) (w *walk, name string, err error) {
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", err
	}
	w = &walk{at: root}
	if name, err = w.to(path); err != nil {
		w.close()
		return nil, "", err
	}
	return w, name, nil
}

func (w *walk) close() { _ = unix.Close(w.at) }

func (w *walk) to(path string) (name string, err error) {
	for todo := strings.Split(path, "/"); len(todo) > 0; {
		name, todo = todo[0], todo[1:]
		if name == "" || name == "." {
			continue
		}
		link, err := w.link(name)
		switch {
		case err != nil:
			return "", err
		case link != "":
			todo = append(strings.Split(link, "/"), todo...)
			if name = "/"; link[0] != '/' {
				continue
			}
		case len(todo) == 0:
			return name, nil
		}
		if err := w.enter(name); err != nil {
			return "", err
		}
	}
	return "", unix.EISDIR
}

// link reads a symbolic link of the folder; "": the name is none, or does not exist.
func (w *walk) link(name string) (to string, err error) {
	fd, err := unix.Openat(w.at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		if err == unix.ENOENT {
			err = nil
		}
		return "", err
	}
	defer unix.Close(fd)
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil || s.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", err
	}
	if s.Uid != 0 && s.Uid != uint32(unix.Geteuid()) {
		return "", fmt.Errorf("%s is a symbolic link of user %d, which is not followed: name the file itself", name, s.Uid)
	}
	if w.links++; w.links > maxLinks {
		return "", unix.ELOOP
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", b)
	return string(b[:max(n, 0)]), err
}

func (w *walk) enter(name string) error {
	fd, err := unix.Openat(w.at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_ = unix.Close(w.at)
	w.at = fd
	return nil
}
