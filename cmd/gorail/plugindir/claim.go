package plugindir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/safepath"
)

var lockWait = time.Minute // a turn takes milliseconds; a process that has the lock longer is stopped

const (
	lockStep = 5 * time.Millisecond
	madeBy   = "Made by gorail plugins, which removes links from here when it is run again.\n"
)

// claim creates the folders, writes the mark, and returns with the folder locked. It refuses a folder that gorail
// plugins did not create, and leaves that folder as it is.
//
// also are users who decide already what is loaded. Anybody else who could change the folder would decide, too, and by links which files
// are overwritten.
func claim(dir string, src source, also []uint32) (unlock func(), err error) {
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
	w, err := safepath.MakeFolder(dir, 0o755, also...)
	if err != nil {
		return nil, fmt.Errorf("--dir %s: %w", dir, err)
	}
	w.Close()
	path := filepath.Join(dir, mark)
	f, err := lock(path, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	want := madeBy + src.origin.String()
	if text, err := os.ReadFile(path); err != nil || string(text) != want {
		err := writeMark(path, want)
		if err != nil && !readOnly(err) { // a read-only folder may be as it should be: fill looks
			return nil, errors.Join(err, f.Close())
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "plugins"), 0o755); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// trusted checks that nobody else can change the folder, or lead its path elsewhere. The error of one that is to be made is fs.ErrNotExist.
func trusted(dir string, also []uint32) error {
	w, err := safepath.TrustedFolder(dir, also...)
	if err != nil {
		return fmt.Errorf("--dir %s: %w", dir, err)
	}
	w.Close()
	return nil
}

func writeMark(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC|safely, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// foreign returns an error if dir is someone else's. The mark is the first file in a folder of ours, so a second look
// at it decides: another process may just be creating the folder.
func foreign(dir string) error {
	path := filepath.Join(dir, mark)
	for range 2 {
		if _, err := os.Lstat(path); err == nil {
			return nil
		}
		entries, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := os.Lstat(path); err != nil {
			return fmt.Errorf("--dir %s is not empty (it has %s) and was not made by gorail plugins: choose an empty or a new folder", dir, entries[0].Name())
		}
	}
	return nil
}

// lock opens a mark and locks it; LOCK_EX creates it. The lock ends with the file that it returns.
func lock(path string, how int) (*os.File, error) {
	deadline := time.Now().Add(lockWait)
	for {
		f, err := openMark(path, how)
		if err != nil {
			return nil, err
		}
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			return nil, errors.Join(err, f.Close(), fmt.Errorf("%s is no file: remove it, or choose another folder", path))
		}
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil && sameFile(f, path) {
			return f, nil
		}
		_ = f.Close() // busy, or the folder was removed meanwhile
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("cannot lock %s (flock): %w; choose a folder on another file system", path, err)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("another gorail plugins has had the lock of %s for %v: end that process (fuser names it), or choose another folder", path, lockWait)
		}
		time.Sleep(lockStep)
	}
}

// openMark opens for writing where it can: flock over NFS wants that. A folder that others made may only be read.
func openMark(path string, how int) (*os.File, error) {
	if how == unix.LOCK_SH {
		return os.OpenFile(path, os.O_RDONLY|safely, 0)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|safely, 0o644)
	if readOnly(err) {
		if f, err := os.OpenFile(path, os.O_RDONLY|safely, 0); err == nil {
			return f, nil
		}
	}
	return f, err
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
	f, err := lock(path, unix.LOCK_SH)
	if err != nil {
		return origin{}, true
	}
	defer func() { _ = f.Close() }()
	text, err := os.ReadFile(path)
	if err != nil {
		return origin{}, true
	}
	return parseOrigin(strings.TrimPrefix(string(text), madeBy)), true
}
