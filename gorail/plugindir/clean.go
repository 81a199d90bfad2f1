package plugindir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
)

// Clean removes a folder that Make has made, or all those below a cache, and says which it removed. It removes links and its own two files
// alone: a folder with other files stays, and is an error. A process that has loaded plugins from the folder is not disturbed. A folder that is
// not there is none of ours, and no error. also are users whose folders Make would take: see claim.
func Clean(dir, cache string, also []uint32) (removed []string, err error) {
	if dir != "" {
		if dir, err = filepath.Abs(dir); err != nil {
			return nil, err
		}
		gone, err := clean(dir, also)
		if gone {
			removed = []string{dir}
		}
		return removed, err
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(cache)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		one := filepath.Join(cache, entry.Name())
		gone, failed := clean(one, also)
		if gone {
			removed = append(removed, one)
		}
		err = errors.Join(err, failed)
	}
	if err == nil && len(removed) > 0 {
		if err = os.Remove(cache); errors.Is(err, unix.ENOTEMPTY) { // another makes a folder in it
			err = nil
		}
	}
	return removed, err
}

// Caches are the folders that nixl_gorail.enable and gorail-env may use: see python/nixl_gorail/_cache.py.
func Caches() []string {
	const name = "nixl-gorail"
	base := os.Getenv("XDG_CACHE_HOME")
	if !filepath.IsAbs(base) {
		base = ""
		if u, err := user.Current(); err == nil {
			base = filepath.Join(cmp.Or(os.Getenv("HOME"), u.HomeDir), ".cache")
		}
	}
	list := []string{filepath.Join(os.TempDir(), fmt.Sprint(name, "-", os.Geteuid()))}
	if filepath.IsAbs(base) {
		list = append(list, filepath.Join(base, name))
	}
	return list
}

// clean removes one folder. It takes the folder away from its path first, so that a Make at the same time makes another one.
func clean(dir string, also []uint32) (gone bool, err error) {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	var locked *os.File
	err = foreign(dir)
	if errors.Is(err, fs.ErrNotExist) { // another is just removing it
		return false, nil
	}
	text, failed := readMark(filepath.Join(dir, mark))
	if errors.Is(failed, fs.ErrNotExist) && err == nil { // others make it, or remove it
		return false, nil
	}
	if err != nil || failed != nil || text != "" && !strings.HasPrefix(text, madeBy) {
		return false, fmt.Errorf("%s was not made by gorail plugins: nothing is removed", dir)
	}
	if err = private(dir, also); err == nil {
		var folder *host.Walk
		if folder, err = host.TrustedFolder(dir, also...); err == nil {
			defer folder.Close()
			locked, err = lock(folder, dir)
		}
	}
	if errors.Is(err, fs.ErrNotExist) { // another has just removed it
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if locked == nil {
		return false, fmt.Errorf("%s belongs to another user: nothing is removed", dir)
	}
	defer locked.Close()
	if err := onlyOurs(dir); err != nil {
		return false, err
	}
	away, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".removed-")
	if err != nil {
		return false, err
	}
	if err := unix.Rename(dir, away); err != nil { // in place of the empty folder, which os.Rename refuses
		return false, errors.Join(os.NewSyscallError("rename", err), os.Remove(away))
	}
	for deadline := time.Now().Add(changeWait); ; time.Sleep(lockStep) { // a Make that has opened the folder may yet begin in it
		if err = empty(away); !errors.Is(err, unix.ENOTEMPTY) || time.Now().After(deadline) {
			return err == nil, err
		}
	}
}

// empty removes a folder of ours that is no longer at its path.
func empty(away string) error {
	plugins := filepath.Join(away, "plugins")
	for _, folder := range []string{plugins, away} {
		if err := fill(folder, nil); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, at := range []string{plugins, filepath.Join(away, lockFile), filepath.Join(away, mark), away} {
		if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// private checks that nobody else can put something into a folder of ours: what clean looks at stays as it is.
func private(dir string, also []uint32) error {
	for _, folder := range []string{dir, filepath.Join(dir, "plugins")} {
		info, err := os.Lstat(folder)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is no folder: nothing is removed", folder)
		}
		if err == nil && info.Mode()&0o002 != 0 {
			err = fmt.Errorf("%s: every user may put files into the folder: remove it by hand", folder)
		}
		if err == nil {
			err = trusted(folder, also)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// onlyOurs returns an error if a folder has files that Make did not put there.
func onlyOurs(dir string) error {
	for _, folder := range []string{dir, filepath.Join(dir, "plugins")} {
		entries, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			switch {
			case e.Type() == os.ModeSymlink, folder == dir && (e.Name() == mark || e.Name() == lockFile || e.Name() == "plugins"):
			default:
				return fmt.Errorf("%s has files that gorail plugins did not make, such as %s: nothing is removed", folder, e.Name())
			}
		}
	}
	return nil
}
