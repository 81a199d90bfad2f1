package ipc

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
)

// Folder is an opened folder with sockets. Its path may lead elsewhere later: the Folder stays the same. It is safe
// for concurrent use.
type Folder struct {
	path string
	file *os.File // O_PATH
}

// OpenFolder opens a folder in which this process and its peers put sockets. Nobody but root, the folder's owner and
// a socket's owner may replace a socket there. The error is an *Error whose advice says what to do.
func OpenFolder(path string) (*Folder, error) {
	refuse := func(errno unix.Errno, advice string, args ...any) (*Folder, error) {
		return nil, &Error{"folder " + path, errno, fmt.Sprintf(advice, args...)}
	}
	if !filepath.IsAbs(path) {
		return refuse(unix.EINVAL, "the path must begin with /")
	}
	path = filepath.Clean(path)
	fd, err := openTrusted(path)
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		return refuse(unix.EPERM, "%v", err)
	}
	switch {
	case errno == unix.ENOTDIR && isLink(path):
		return refuse(unix.ELOOP, "it is a symbolic link: name the folder itself")
	case errno == unix.ENOTDIR:
		return refuse(unix.ENOTDIR, "it is no folder: name one")
	case errno == unix.ENOENT:
		return refuse(unix.ENOENT, "containers mount a folder of the host there; on the host make it: mkdir -m 1777 %s", path)
	case err != nil:
		return refuse(errno, "may this user reach the folder?")
	}
	f := &Folder{path, os.NewFile(uintptr(fd), path)}
	if errno, advice := f.check(); errno != 0 {
		f.Close()
		return refuse(errno, "%s", advice)
	}
	return f, nil
}

// openTrusted opens a folder that is no symbolic link, behind folders in which no other user decides. Implements openat.
func openTrusted(path string) (fd int, err error) {
	above, err := host.TrustedFolder(filepath.Dir(path), host.Unmapped()...) // a container's folder; who replaces a socket lacks our user and the token
	if err != nil {
		return -1, err
	}
	defer above.Close()
	return unix.Openat(above.Fd(), filepath.Base(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// check says why the folder is not usable, and what to do; 0: the folder is usable.
func (f *Folder) check() (unix.Errno, string) {
	const others = 0o022
	var st unix.Stat_t
	if err := unix.Fstat(f.fd(), &st); err != nil {
		return Errno(err), ""
	}
	switch {
	case st.Uid != 0 && st.Uid != uint32(unix.Geteuid()) && !host.Ambiguous(st.Uid):
		return unix.EPERM, fmt.Sprintf("it belongs to user %d, who could replace sockets: chown root %s", st.Uid, f.path)
	case st.Mode&others != 0 && st.Mode&unix.S_ISVTX == 0:
		return unix.EPERM, fmt.Sprintf("other users may write to it and could replace sockets: chmod +t %s", f.path)
	}
	if _, err := os.Readlink(f.at("")); err != nil {
		return Errno(err), "/proc does not show this process: mount a /proc of this pid namespace"
	}
	return 0, ""
}

func isLink(path string) bool {
	st, err := os.Lstat(path)
	return err == nil && st.Mode()&os.ModeSymlink != 0
}

// Path is the folder's path when it was opened.
func (f *Folder) Path() string { return f.path }

// Close closes the folder. Its Listeners must be closed.
func (f *Folder) Close() { _ = f.file.Close() }

func (f *Folder) fd() int { return int(f.file.Fd()) }

// at is a path of a name in the folder that is short and does not depend on what the folder's own path leads to.
func (f *Folder) at(name string) string {
	path := fmt.Sprintf("/proc/self/fd/%d", f.fd())
	if name != "" {
		path += "/" + name
	}
	return path
}

// Listen opens a Listener in the folder, for the users that may connect. The error is an *Error.
func (f *Folder) Listen(backlog int, users Users) (*Listener, error) {
	l, err := newListener(users)
	if err != nil {
		return nil, err
	}
	l.folder = f
	if err := f.bind(l, backlog); err != nil {
		_ = l.file.Close()
		return nil, &Error{"make a socket in " + f.path, Errno(err), f.advice(Errno(err))}
	}
	return l, nil
}

// fresh is the end of the name of a socket that does not listen yet.
const fresh = ".new"

// bind makes a socket under a temporary name and renames it when it listens. So who finds a socket that refuses a
// connection knows that its process has ended.
func (f *Folder) bind(l *Listener, backlog int) error {
	const tries = 3
	mode := uint32(0o600)
	if l.users == AnyUser {
		mode = 0o666
	}
	var err error
	for range tries { // a sweeper may take a socket of a process that was stopped here
		if err = unix.Fchmod(l.sock(), mode); err != nil { // the file gets this mode, less the umask
			return err
		}
		_, _ = rand.Read(l.fileName[:])
		temporary := l.fileName.Name() + fresh
		if err = unix.Bind(l.sock(), &unix.SockaddrUnix{Name: f.at(temporary)}); err != nil {
			return err
		}
		if err = unix.Fchmodat(f.fd(), temporary, mode, 0); err == nil {
			err = unix.Listen(l.sock(), backlog)
		}
		if err == nil {
			err = unix.Renameat(f.fd(), temporary, f.fd(), l.fileName.Name())
		}
		if err == nil {
			return nil
		}
		_ = unix.Unlinkat(f.fd(), temporary, 0)
		if err != unix.ENOENT {
			return err
		}
		if err := l.renew(); err != nil {
			return err
		}
	}
	return err
}

// advice says what to do about an error of bind.
func (f *Folder) advice(errno unix.Errno) string {
	switch errno {
	case unix.EACCES:
		return fmt.Sprintf("user %d may not write to the folder: chmod 1777 %s, or chown it", unix.Geteuid(), f.path)
	case unix.EROFS:
		return "the folder is mounted read-only: mount it for writing"
	case unix.ENOSPC, unix.EDQUOT:
		return "the folder's file system is full: remove files there, or give it more inodes"
	case unix.ENOENT:
		return "the folder was removed: make it again and restart"
	case unix.EPERM, unix.EOPNOTSUPP:
		return "the folder's file system takes no sockets: name a folder of a tmpfs or of a local disk"
	}
	return ""
}

// dial connects to a socket in the folder.
func (f *Folder) dial(file File) (*Conn, error) {
	c, err := connect(&unix.SockaddrUnix{Name: f.at(file.Name())})
	if err == nil {
		return c, nil
	}
	e := &Error{"connect to the peer's socket in " + f.path, Errno(err), ""}
	switch e.Errno {
	case unix.ENOENT:
		e.Advice = fmt.Sprintf("no socket of the peer in %s: do both mount the same folder of the host?", f.path)
	case unix.ECONNREFUSED:
		e.Advice = "the peer has ended"
	case unix.EACCES:
		e.Advice = "the peer's socket is for another user: run both as one user, or set local_peers=any-with-token at both"
	}
	return nil, e
}

const (
	sweepMost  = 256         // files that a sweep looks at
	sweepNames = 16384       // names that it reads to choose these files
	sweepAge   = time.Minute // of a socket that never listened, if a sweep may remove it
)

// Sweep removes sockets of our user, of this boot of the host, whose processes have ended. A process that lives accepts connections, stopped or
// not, from the moment that its socket has its name.
func (f *Folder) Sweep() { f.sweep(time.Now()) }

func (f *Folder) sweep(now time.Time) {
	dir, err := os.Open(f.at("")) // O_PATH cannot be read
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(sweepNames)
	mathrand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	looked := 0
	for _, name := range names {
		if !isSocketName(name) {
			continue
		}
		if looked++; looked > sweepMost {
			break
		}
		var st unix.Stat_t
		if unix.Fstatat(f.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK ||
			st.Uid != uint32(unix.Geteuid()) {
			continue
		}
		if strings.HasSuffix(name, fresh) && now.Sub(time.Unix(st.Ctim.Unix())) < sweepAge { // its process may be about to listen
			continue
		}
		f.removeDead(name)
	}
}

// isSocketName reports that a file may be one of this host's engines, since its boot.
func isSocketName(name string) bool {
	digits, ok := strings.CutSuffix(strings.TrimSuffix(name, fresh), suffix)
	digits, here := strings.CutPrefix(digits, bootMark())
	b, err := hex.DecodeString(digits)
	return ok && here && err == nil && len(b) == len(File{}) && digits == strings.ToLower(digits)
}

// RemoveDead removes a peer's socket if its process has ended. gone is false if the socket is there and takes
// connections.
func (f *Folder) RemoveDead(file File) (gone bool) { return f.removeDead(file.Name()) }

func (f *Folder) removeDead(name string) (gone bool) {
	switch host.SocketUse(f.at(name), unix.SOCK_SEQPACKET) {
	case unix.ECONNREFUSED: // no name is used twice
		_ = unix.Unlinkat(f.fd(), name, 0)
		return true
	case unix.ENOENT:
		return true
	}
	return false
}
