package stats

// The folders where engines put the sockets that readers look for.

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
)

const (
	prefix = "stats-"
	suffix = ".sock"

	mostSwept = 64 // sockets that one engine looks at; of 1,024 it took half of the time to make it
)

// FoldersOf returns the folders where an engine with this value of option stats_socket tries to put its socket, the best first. off: none.
func FoldersOf(option string, getenv func(string) string) []string {
	switch option {
	case "off":
		return nil
	case "auto":
		return Folders(getenv)
	}
	return []string{option}
}

// Folders returns the folders where engines of this user and of root put their sockets by default, the best first.
func Folders(getenv func(string) string) (list []string) {
	if run := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		list = append(list, filepath.Join(run, "gorail"))
	}
	return append(list, "/run/gorail")
}

// FolderError says why a folder can have no sockets of ours.
type FolderError struct {
	Path string
	Err  error
	Do   string // the command that mends it; "": Err says what to do
}

// Error implements error.
func (e *FolderError) Error() string {
	text := e.Err.Error()
	if !strings.Contains(text, e.Path) {
		text = "folder " + e.Path + ": " + text
	}
	switch {
	case strings.HasPrefix(e.Do, "mkdir"):
		text += " (containers mount a folder of the host there; on the host make it: " + e.Do + ")"
	case e.Do != "":
		text += fmt.Sprintf(" (user %d may not write to the folder: %s, or chown it)", os.Geteuid(), e.Do)
	}
	return text
}

// Unwrap is for errors.Is.
func (e *FolderError) Unwrap() error { return e.Err }

// Folder makes a folder for sockets, of mode 0700. A folder that others may write to is refused, and one on a path that others could lead
// elsewhere: they could put their own socket in place of ours. The error is a *FolderError.
func Folder(path string) error {
	err := makeFolder(path)
	if err == nil {
		return nil
	}
	e := &FolderError{Path: path, Err: err}
	if _, no := os.Stat(path); errors.Is(no, fs.ErrNotExist) {
		e.Do = "mkdir -p -m 1777 " + path
	} else if errors.Is(err, fs.ErrPermission) {
		e.Do = "chmod 1777 " + path
	}
	return e
}

// Try makes a socket in a folder as an engine does, and removes it. The folder stays.
func Try(path string) error {
	if err := Folder(path); err != nil {
		return err
	}
	name := filepath.Join(path, "try-"+rand.Text()[:12]+suffix) // readers look for another prefix; pods have the same process numbers
	l, err := bind(name)
	if err != nil {
		return err
	}
	l.Close()
	return os.Remove(name)
}

func makeFolder(path string) error {
	above, name, err := host.Trusted(path)
	if err != nil {
		return err
	}
	err = unix.Mkdirat(above.Fd(), name, 0o700)
	above.Close()
	if err != nil && err != unix.EEXIST {
		return &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	w, err := host.TrustedFolder(path)
	if err != nil {
		return err
	}
	defer w.Close()
	var s unix.Stat_t
	if err := unix.Fstat(w.Fd(), &s); err != nil {
		return fmt.Errorf("folder %s: %w", path, err)
	}
	if s.Mode&0o022 != 0 && s.Mode&unix.S_ISVTX == 0 {
		return fmt.Errorf("folder %s: others may remove files in it (mode %#o): take their right to write, or set the sticky bit", path, s.Mode&0o7777)
	}
	return unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}

// bind listens on a path that only our user may connect to. The socket gets its name once it listens, so that a socket that
// refuses connections is a dead one.
func bind(path string) (*net.UnixListener, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	early := path + ".new"
	_ = unix.Unlink(early)
	if err := unix.Fchmod(fd, 0o600); err != nil { // bind gives the file this mode
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: early}); err != nil {
		return nil, fmt.Errorf("socket %s: %w", early, err)
	}
	if err = unix.Listen(fd, 64); err == nil {
		err = unix.Rename(early, path)
	}
	if err != nil {
		_ = unix.Unlink(early)
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		_ = unix.Unlink(path)
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	return u, nil
}

// Sockets lists the sockets of a folder.
func Sockets(folder string) ([]string, error) {
	entries, err := os.ReadDir(folder)
	var list []string
	for _, e := range entries {
		if e.Type() == fs.ModeSocket && strings.HasPrefix(e.Name(), prefix) && strings.HasSuffix(e.Name(), suffix) {
			list = append(list, filepath.Join(folder, e.Name()))
		}
	}
	return list, err
}

// sweep removes sockets of our user whose processes have ended.
func sweep(folder string) {
	list, _ := Sockets(folder) // the bind reports what is wrong with the folder
	mathrand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for _, path := range list[:min(len(list), mostSwept)] {
		var s unix.Stat_t
		if unix.Lstat(path, &s) != nil || s.Uid != uint32(os.Geteuid()) {
			continue
		}
		if host.SocketUse(path, unix.SOCK_STREAM) == unix.ECONNREFUSED {
			_ = os.Remove(path)
		}
	}
}
