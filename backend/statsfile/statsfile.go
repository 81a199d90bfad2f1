// Package statsfile writes the counters of a closing engine to a file, a terminal or a descriptor of the host. It waits
// for no reader.
package statsfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/logqueue"
)

// Check checks that a path can be written, and makes the path absolute: the host may change its working directory. It
// creates nothing.
func Check(path string) (string, error) {
	if fd, ok := descriptor(path); ok {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY {
			err = errors.New("the descriptor is open for reading only")
		}
		return path, err
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if w, _, err := follow(path); err == nil {
		w.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	info, err := os.Stat(path)
	if err == nil {
		if err = writable(info.Mode()); err == nil {
			err = unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS)
		}
		return path, err
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	folder := filepath.Dir(path)
	if err := unix.Faccessat(unix.AT_FDCWD, folder, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return "", fmt.Errorf("folder %s: %w", folder, err)
	}
	return path, nil
}

// descriptor returns the process's own descriptor that a path names. The descriptor may be a pipe or a socket that the
// host reads or passes on. Opening the path again would truncate a file.
func descriptor(path string) (fd int, ok bool) {
	switch path {
	case "/dev/stdout":
		return syscall.Stdout, true
	case "/dev/stderr":
		return syscall.Stderr, true
	}
	for _, folder := range []string{"/dev/fd/", "/proc/self/fd/"} {
		if number, found := strings.CutPrefix(path, folder); found {
			fd, err := strconv.Atoi(number)
			return fd, err == nil && fd >= 0
		}
	}
	return 0, false
}

// writable accepts files, which keep the counters, and terminals, which show them. It refuses everything else.
func writable(mode fs.FileMode) error {
	switch kind := mode.Type(); {
	case kind.IsRegular(), kind&fs.ModeCharDevice != 0:
		return nil
	case kind.IsDir():
		return errors.New("is a directory: name a file")
	case kind&fs.ModeNamedPipe != 0:
		return errors.New("is a named pipe, which may have no reader when the engine closes: name a file, or /dev/stderr")
	}
	return errors.New("is neither a file nor a terminal")
}

// Write writes to a path that Check accepted. It waits no longer than most. Writes to one path come one after the other: one
// that does not end keeps one thread, and later ones fail.
func Write(path string, data []byte, most time.Duration) error {
	timer := time.NewTimer(most)
	defer timer.Stop()
	release, ok := turns.take(path, timer.C)
	if !ok {
		return fmt.Errorf("the last write has not ended within %v", most)
	}
	done := make(chan error, 1)
	go func() {
		defer release()
		if fd, ok := descriptor(path); ok {
			own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) // the host may close its own descriptor meanwhile
			if err == nil {
				err = logqueue.To(own)(data)
				_ = unix.Close(own)
			}
			done <- err
			return
		}
		done <- replaceFile(path, data, most)
	}()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("write timed out after %v", most)
	}
}

// replaceFile writes a file or a terminal. A file is replaced whole, so that a reader never sees half of it, unless its
// folder takes no new files.
func replaceFile(path string, data []byte, most time.Duration) error {
	w, name, err := follow(path)
	if err != nil {
		return err
	}
	defer w.Close()
	fd, err := w.open(name, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return w.replace(name, data, nil)
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = writable(info.Mode())
	}
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() {
		if err := w.replace(name, data, info); !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EBUSY) { // EBUSY: mounted over
			return err
		}
		if err := f.Truncate(0); err != nil {
			return err
		}
		return logqueue.To(int(f.Fd()))(data)
	}
	_ = f.SetWriteDeadline(time.Now().Add(most)) // effective for a terminal
	_, err = f.Write(data)
	return err
}

// replace puts a new file under a name. It has the mode and, where we may, the owner of the old one, if there is one.
func (w walk) replace(name string, data []byte, old fs.FileInfo) error {
	mode := fs.FileMode(0o644)
	if old != nil {
		mode = old.Mode().Perm()
	}
	early := fmt.Sprintf(".%s.%d.new", name, unix.Getpid())
	_ = unix.Unlinkat(w.Fd(), early, 0) // of a process that was killed
	fd, err := unix.Openat(w.Fd(), early, openFlags|unix.O_CREAT|unix.O_EXCL, uint32(mode))
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), early)
	err = logqueue.To(fd)(data)
	if err == nil && old != nil {
		if s, ok := old.Sys().(*syscall.Stat_t); ok {
			_ = f.Chown(int(s.Uid), int(s.Gid)) // before the mode, which this may change
		}
		err = f.Chmod(mode) // whatever the umask
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = unix.Renameat(w.Fd(), early, w.Fd(), name)
	}
	if err != nil {
		_ = unix.Unlinkat(w.Fd(), early, 0)
	}
	return err
}
