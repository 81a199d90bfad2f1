package plugindir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Clean removes a folder that Make has made, or all those below a cache, and says which it removed. It removes links and its own two files
// alone: a folder with other files stays, and is an error. A process that has loaded plugins from the folder is not disturbed. A folder that is
// not there is none of ours, and no error.
func Clean(dir, cache string) (removed []string, err error) {
	if dir != "" {
		gone, err := clean(dir)
		if gone {
			removed = []string{dir}
		}
		return removed, err
	}
	entries, err := os.ReadDir(cache)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		one := filepath.Join(cache, e.Name())
		gone, e := clean(one)
		if gone {
			removed = append(removed, one)
		}
		err = errors.Join(err, e)
	}
	if err == nil {
		err = os.Remove(cache)
	}
	return removed, err
}

// Caches are the folders that nixl_gorail.enable and gorail-env may use: see python/nixl_gorail/_cache.py.
func Caches() []string {
	const name = "nixl-gorail"
	base := os.Getenv("XDG_CACHE_HOME")
	if !filepath.IsAbs(base) {
		home, _ := os.UserHomeDir()
		base = filepath.Join(home, ".cache")
	}
	return []string{filepath.Join(base, name), filepath.Join(os.TempDir(), fmt.Sprint(name, "-", os.Geteuid()))}
}

// clean removes one folder.
func clean(dir string) (gone bool, err error) {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	text, err := readMark(filepath.Join(dir, mark))
	if err != nil || text != "" && !strings.HasPrefix(text, madeBy) {
		return false, fmt.Errorf("%s was not made by gorail plugins: nothing is removed", dir)
	}
	if err := trusted(dir, nil); err != nil {
		return false, err
	}
	locked, err := lock(dir)
	if err != nil {
		return false, err
	}
	if locked == nil {
		return false, fmt.Errorf("%s belongs to another user: nothing is removed", dir)
	}
	defer locked.Close()
	plugins := filepath.Join(dir, "plugins")
	for _, folder := range []string{plugins, dir} {
		if err := fill(folder, nil); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	if err := os.Remove(plugins); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("%w: it has files that gorail plugins did not make", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	for _, e := range left {
		if e.Name() != mark && e.Name() != lockFile {
			return false, fmt.Errorf("%s has files that gorail plugins did not make, such as %s: its links are removed, and the folder stays", dir, e.Name())
		}
	}
	for _, name := range []string{lockFile, mark} { // the lock first: who waits for it finds that it is gone, and begins anew
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return false, err
		}
	}
	return true, os.Remove(dir)
}
