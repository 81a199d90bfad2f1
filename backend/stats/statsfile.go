package stats

// The counters of a closing engine go to a file, a terminal or a descriptor of the host. It waits
// for no reader.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
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
				err = host.LinesTo(own)(data)
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
		return host.LinesTo(int(f.Fd()))(data)
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
	err = host.LinesTo(fd)(data)
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

// An engine may run as root and write into a folder of another user. That user must not choose which other file is
// written: by a symbolic link, in place of the file or of a folder on the way to it, or by a hard link.

// openFlags are those of all files that are opened for writing.
const openFlags = unix.O_WRONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC

// walk is a folder that was reached.
type walk struct{ *host.Walk }

// follow is host.Follow.
func follow(path string) (w walk, name string, err error) {
	w.Walk, name, err = host.Follow(path)
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

// Expand replaces %p by the process id, %h by the host's name, %a by the agent's name, and %% by %. A name's characters other
// than letters, digits, '.', '-' and '_' become '_', so that it stays one part of a path. Other words stay as they are.
func Expand(path, agent string) string {
	host, _ := os.Hostname()
	return strings.NewReplacer("%%", "%", "%p", strconv.Itoa(os.Getpid()), "%h", part(host), "%a", part(agent)).Replace(path)
}

func part(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
			return r
		}
		return '_'
	}, name)
}

// turnsOf lets one user at a time have a path.
type turnsOf struct {
	mu    sync.Mutex
	paths map[string]*turn
}

type turn struct {
	free  chan struct{} // has a value while nobody has the path
	users int           // who have it or wait for it
}

var turns turnsOf

// take waits for the path's turn until late. The caller of a turn calls release once.
func (t *turnsOf) take(path string, late <-chan time.Time) (release func(), ok bool) {
	t.mu.Lock()
	one := t.paths[path]
	if one == nil {
		if t.paths == nil {
			t.paths = map[string]*turn{}
		}
		one = &turn{free: make(chan struct{}, 1)}
		one.free <- struct{}{}
		t.paths[path] = one
	}
	one.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(t.paths, path)
		}
	}
	taken := func() { one.free <- struct{}{}; leave() }
	select {
	case <-one.free: // also when it is late already: a path that is free is never said to be taken
		return taken, true
	default:
	}
	select {
	case <-one.free:
		return taken, true
	case <-late:
		leave()
		return nil, false
	}
}
