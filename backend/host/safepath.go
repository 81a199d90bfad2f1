package host

// Paths are walked so that no other user decides where they lead. The process may be root's, and a part of the path in a folder
// of somebody else.
//
// # Paths
//
// Each line has the paths, who names them, what another user cannot do, and the tests:
//
//   - stats_file, log_file: the operator; choose which file is written, by a symbolic or hard link, also to a file of
//     ours. The folders may be his; stats TestOthersLinks
//   - stats_socket, local_dir: the operator, or $XDG_RUNTIME_DIR, /run/gorail; own or replace a folder or a link on
//     the way; stats TestFolderRefused; ipc TestFolderRules
//   - the roster of a host's engines: the folder of local_dir, or /dev/shm/gorail-UID, which is made; the same; keep a
//     dead engine's entry (host TestRosterFolders, TestRosterOthersLocks)
//   - gorail plugins --dir and --cache, its mark and its lock: the operator; the same, also while missing folders are
//     made (host TestMakeFolder); put files into the folder; hold its lock. The owner of the plugin that is linked
//     is trusted: he decides already what is loaded. ./build of another user is not searched; plugindir
//     TestFoldersOfOthers, TestLocksOfOthers
//   - the cache of the Python package: $XDG_CACHE_HOME, $TMPDIR; the same; the last folder is this user's own;
//     python/tests test_cache.py, test_safepath.py
//   - libfabric_path, tls_key, secret_file, --plugin and other files that are read: the operator; nothing is checked:
//     they are opened as by any program. Who names a file trusts its owner, as in LD_LIBRARY_PATH; nothing is written,
//     and callers from afar name none
//
// "Own or replace": folders of a user other than root and the process's, links of such users, and folders that
// everybody may write to without the sticky bit are refused. A group that an owner lets in is trusted. In a user
// namespace an owner without a number may be root, and is trusted, but for folders where every user may make others. A
// FUSE file system that its owner opens to others may show any owner.

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is the number of symbolic links that a path may have, as in the kernel.
const maxLinks = 40

// Walk is a folder that was reached through all parts of a path.
type Walk struct {
	at     int      // descriptor of the folder, O_PATH
	path   string   // of the folder, without links
	links  int      // symbolic links that were followed
	trust  []uint32 // other users, of a strict walk
	strict bool     // nobody else may replace a part
	mode   uint32   // of folders that are made; 0: none is
	whole  bool     // the path's last part is a folder to go to
	dev    uint64   // device of the folder; 0: none yet
	open   bool     // every user may put something into the folder
}

// Follow goes to the last folder of an absolute path. name is what the path names in it, and no symbolic link; it may not exist. Symbolic
// links of other users are not followed, wherever in the path: they could lead to any file. The folders may be anybody's. The caller closes
// the Walk. Implements openat with O_NOFOLLOW for each part.
func Follow(path string) (w *Walk, name string, err error) {
	return (&Walk{}).begin(path)
}

// Trusted is Follow for what this process loads, or meets others by. It refuses a path in which a user could replace a part, other than
// root, this user and those in also: folders of others, and folders that everybody may write to without the sticky bit. A group that an
// owner has let in is trusted, and so is who can write to a mounted volume: Kubernetes's emptyDir is open to all of its pod. The error of a
// part that does not exist is fs.ErrNotExist: all parts before it are as they should be.
func Trusted(path string, also ...uint32) (w *Walk, name string, err error) {
	return (&Walk{trust: also, strict: true}).begin(path)
}

// TrustedFolder is Trusted for a folder, which is checked as the others are. The caller closes the Walk, which is in the folder.
func TrustedFolder(path string, also ...uint32) (*Walk, error) {
	w, _, err := (&Walk{trust: also, strict: true, whole: true}).begin(path)
	return w, err
}

// MakeFolder is TrustedFolder, and makes the folders that are missing, each in the one before it. Implements mkdirat.
func MakeFolder(path string, mode uint32, also ...uint32) (*Walk, error) {
	w, _, err := (&Walk{trust: also, strict: true, whole: true, mode: mode}).begin(path)
	return w, err
}

// Fd is the descriptor of the folder, with O_PATH. It is the Walk's.
func (w *Walk) Fd() int { return w.at }

// Path is the folder's path without symbolic links and "..", as it was walked.
func (w *Walk) Path() string { return w.path }

// Close closes the folder.
func (w *Walk) Close() { _ = unix.Close(w.at) }

func (w *Walk) begin(path string) (_ *Walk, name string, err error) {
	if !filepath.IsAbs(path) {
		return nil, "", fmt.Errorf("%s: the path must begin with /", path)
	}
	if w.at, err = unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, "", err
	}
	w.path = "/"
	if err = w.check(); err == nil {
		name, err = w.to(path)
	}
	if err != nil {
		w.Close()
		return nil, "", err
	}
	return w, name, nil
}

func (w *Walk) to(path string) (name string, err error) {
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
		case len(todo) == 0 && !w.whole:
			return name, nil
		}
		if err := w.enter(name); err != nil {
			return "", err
		}
	}
	if w.whole {
		return "", nil
	}
	return "", unix.EISDIR
}

// link reads a symbolic link of the folder; "": the name is none, or does not exist.
func (w *Walk) link(name string) (to string, err error) {
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
	if s.Uid != 0 && s.Uid != uint32(unix.Geteuid()) && !slices.Contains(w.trust, s.Uid) {
		return "", fmt.Errorf("%s is a symbolic link of user %d, which is not followed: name what it leads to", filepath.Join(w.path, name), s.Uid)
	}
	if w.links++; w.links > maxLinks {
		return "", unix.ELOOP
	}
	b := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", b)
	if err == nil && n == 0 {
		err = unix.ENOENT
	}
	return string(b[:max(n, 0)]), err
}

func (w *Walk) enter(name string) error {
	const how = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	path := filepath.Join(w.path, name)
	if name == "/" {
		path = name
	}
	fd, err := unix.Openat(w.at, name, how, 0)
	if err == unix.ENOENT && w.mode != 0 {
		if err := unix.Mkdirat(w.at, name, w.mode); err != nil && err != unix.EEXIST { // another process may make it, too
			return &fs.PathError{Op: "mkdir", Path: path, Err: err}
		}
		fd, err = unix.Openat(w.at, name, how, 0)
	}
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	_ = unix.Close(w.at)
	w.at, w.path = fd, path
	return w.check()
}

// check looks who could replace a part in the folder.
func (w *Walk) check() error {
	if !w.strict {
		return nil
	}
	var s unix.Stat_t
	if err := unix.Fstat(w.at, &s); err != nil {
		return &fs.PathError{Op: "stat", Path: w.path, Err: err}
	}
	volume := w.dev != 0 && s.Dev != w.dev
	anybody := w.open && !volume // has made the folder
	w.dev, w.open = s.Dev, s.Mode&unix.S_IWOTH != 0
	switch {
	case s.Uid != 0 && s.Uid != uint32(unix.Geteuid()) && !slices.Contains(w.trust, s.Uid) && (anybody || !mayBeRoot(s.Uid)):
		return fmt.Errorf("folder %s belongs to user %d, who could replace its content: choose a folder of user %d or root", w.path, s.Uid, unix.Geteuid())
	case s.Mode&unix.S_IWOTH != 0 && s.Mode&unix.S_ISVTX == 0 && !volume:
		return fmt.Errorf("every user may replace the content of folder %s: chmod o-w %s, or chmod +t", w.path, w.path)
	}
	return nil
}
