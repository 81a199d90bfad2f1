package plugindir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
)

var lockWait = time.Minute // a turn takes milliseconds; a process that has the lock longer is stopped

const (
	lockStep   = 5 * time.Millisecond
	markWait   = 5 * time.Second
	claimWait  = 5 * time.Second
	changeWait = time.Second
	lockFile   = ".gorail-plugins.lock"
	mostMark   = 64 << 10 // bytes
	madeBy     = "Made by gorail plugins, which removes links from here when it is run again.\n"
)

// claim creates the folders, writes the mark, and returns with the folder locked, until the file is closed; nil: this user can change nothing.
// It refuses a folder that gorail plugins did not create, and leaves that folder as it is. fs.ErrNotExist: Clean took it away meanwhile.
//
// also are users who decide already what is loaded. Anybody else who could change the folder would decide, too, and by links which files
// are overwritten.
func claim(dir string, src source, also []uint32) (locked *os.File, err error) {
	for _, theirs := range src.folders {
		if inside(dir, theirs) {
			return nil, fmt.Errorf("--dir %s is inside %s, which is not touched: choose another folder", dir, theirs)
		}
	}
	if err := trusted(dir, also); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := foreign(dir); err != nil {
		return nil, err
	}
	folder, err := ours(dir, also)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	if err := begin(folder, dir); err != nil {
		return nil, err
	}
	f, err := lock(folder, dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, mark)
	want := madeBy + src.origin.String()
	if text, err := readMark(path); err != nil || text != want {
		err := writeMark(path, want)
		if err != nil && !readOnly(err) { // a read-only folder may be as it should be: fill looks
			return nil, errors.Join(err, f.Close())
		}
	}
	plugins, err := ours(filepath.Join(dir, "plugins"), also)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	plugins.Close()
	return f, nil
}

// ours makes a folder unless it is there. Others may neither change it nor put something into it: a library there would be found before
// others. Who can write to a mounted volume is trusted. The caller closes it.
func ours(dir string, also []uint32) (*host.Walk, error) {
	w, err := host.MakeFolder(dir, 0o755, also...)
	if err != nil {
		return nil, fmt.Errorf("--dir %s: %w", dir, err)
	}
	var s unix.Stat_t
	if err := unix.Fstat(w.Fd(), &s); err != nil {
		w.Close()
		return nil, err
	}
	if s.Mode&unix.S_IWOTH != 0 && s.Mode&unix.S_ISVTX != 0 {
		w.Close()
		return nil, fmt.Errorf("--dir %s: every user may put files into the folder: choose a folder in it", dir)
	}
	return w, nil
}

// trusted checks that nobody else can change the folder, or lead its path elsewhere. The error of one that is to be made is fs.ErrNotExist.
func trusted(dir string, also []uint32) error {
	w, err := host.TrustedFolder(dir, also...)
	if err != nil {
		return fmt.Errorf("--dir %s: %w", dir, err)
	}
	w.Close()
	return nil
}

// begin makes the mark, empty. It is the first file in a folder of ours. The folder is opened: Clean may take it from its path meanwhile, and
// another one there must not get our files.
func begin(folder *host.Walk, dir string) error {
	f, err := openIn(folder, dir, mark, os.O_RDWR|os.O_CREATE, 0o644)
	if readOnly(err) { // others made it
		if theirs, err := openIn(folder, dir, mark, os.O_RDONLY, 0); err == nil {
			return theirs.Close()
		}
	}
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file: remove it, or choose another folder", f.Name())
	}
	return errors.Join(err, f.Close())
}

// openIn opens a file of the folder, which was dir when it was opened. It follows no link, and waits for nobody at a pipe. Implements openat.
func openIn(folder *host.Walk, dir, name string, flags int, mode uint32) (*os.File, error) {
	path := filepath.Join(dir, name)
	fd, err := unix.Openat(folder.Fd(), name, flags|safely|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, &os.PathError{Op: "openat", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// writeMark replaces the mark whole: who reads it takes no lock.
func writeMark(path, text string) error {
	early := path + ".new"
	if err := os.Remove(early); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(early, os.O_WRONLY|os.O_CREATE|os.O_EXCL|safely, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(early, path)
	}
	return err
}

func readMark(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|safely, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostMark))
	return string(text), err
}

// foreign returns an error if dir is someone else's. The mark is the first file in a folder of ours, and goes after the folder has left its
// path. So a second look at both decides: others may just be making the folder, or removing it, which is fs.ErrNotExist.
func foreign(dir string) error {
	folder, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return fmt.Errorf("--dir %s is a link to something that is not there: remove it, or choose another folder", dir)
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer folder.Close()
	entries, err := folder.ReadDir(-1)
	if err != nil || len(entries) == 0 {
		return err
	}
	for _, e := range entries {
		if e.Name() == mark {
			return nil
		}
	}
	var s unix.Stat_t
	if unix.Fstatat(int(folder.Fd()), mark, &s, unix.AT_SYMLINK_NOFOLLOW) == nil {
		return nil
	}
	if !sameFile(folder, dir) {
		return &os.PathError{Op: "open", Path: dir, Err: fs.ErrNotExist}
	}
	return fmt.Errorf("--dir %s is not empty (it has %s) and was not made by gorail plugins: choose an empty or a new folder", dir,
		entries[0].Name())
}

// lock takes the lock of the folder, which is dir. Only those who may change the folder can open its file: a user who opens a file can lock it,
// and others wait. A user who may not open it gets nil, and can change nothing. The lock ends with the file that it returns. It returns
// fs.ErrNotExist when the folder is no longer at its path.
func lock(folder *host.Walk, dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	for deadline := time.Now().Add(lockWait); ; time.Sleep(lockStep) {
		f, err := openLock(folder, dir)
		if readOnly(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			return nil, errors.Join(err, f.Close(), fmt.Errorf("%s is no file: remove it, or choose another folder", path))
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil && sameFile(f, path) {
			return f, nil
		}
		_ = f.Close() // busy, or the folder was removed meanwhile
		if err == nil {
			return nil, &os.PathError{Op: "flock", Path: path, Err: fs.ErrNotExist}
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("cannot lock %s (flock): %w; choose a folder on another file system", path, err)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("another gorail plugins has had the lock of %s for %v: end that process (fuser names it), or choose another folder", dir, lockWait)
		}
	}
}

// openLock opens the lock for writing: flock over NFS wants that. Those may open it who may write to the folder.
func openLock(folder *host.Walk, dir string) (*os.File, error) {
	f, err := openIn(folder, dir, lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	var own, above unix.Stat_t
	if unix.Fstat(int(f.Fd()), &own) != nil || unix.Fstat(folder.Fd(), &above) != nil || own.Uid != uint32(os.Geteuid()) {
		return f, nil
	}
	mode := uint32(0o600)
	if above.Mode&0o020 != 0 && (own.Gid == above.Gid || f.Chown(-1, int(above.Gid)) == nil) {
		mode |= 0o060
	}
	if above.Mode&0o002 != 0 { // a volume
		mode |= 0o006
	}
	if own.Mode&0o777 != mode {
		err = unix.Fchmod(int(f.Fd()), mode)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// safely follows no link, and waits for nobody at a pipe.
const safely = unix.O_NOFOLLOW | unix.O_NONBLOCK

func readOnly(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) }

func sameFile(f *os.File, path string) bool {
	ours, err := f.Stat()
	if err != nil {
		return false
	}
	theirs, err := os.Lstat(path)
	return err == nil && os.SameFile(ours, theirs)
}

// madeFrom returns what a folder of ours was made from, with ok false if the folder is not ours. Folders of older
// versions do not say.
func madeFrom(dir string) (from origin, ok bool) {
	path := filepath.Join(dir, mark)
	if _, err := os.Lstat(path); err != nil {
		return origin{}, false
	}
	for deadline := time.Now().Add(markWait); ; time.Sleep(lockStep) {
		text, err := readMark(path)
		if err != nil {
			return origin{}, true
		}
		if text != "" || time.Now().After(deadline) { // empty: the folder is being made
			return parseOrigin(strings.TrimPrefix(text, madeBy)), true
		}
	}
}
