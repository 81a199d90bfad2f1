// Package plugindir creates a folder for NIXL_PLUGIN_DIR. This variable replaces NIXL's own plugin folder. The folder
// therefore links GORAIL, the stock plugins of an installed wheel, and GORAIL again under names that programs have
// built in.
//
// The stock plugins look for the wheel's bundled libraries in $ORIGIN/.., the folder above the folder that they were
// opened in:
//
//	D/                    links to every library of the wheel, and to the folders with their modules (ucx)
//	D/plugins/            links to GORAIL, to the stock plugins, and aliases of GORAIL
//	D/.gorail-plugins     marks the folder as ours
//
// Everything but the mark is a symbolic link. Nothing is copied, and the wheel is only read.
package plugindir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	mark   = ".gorail-plugins"
	prefix = "libplugin_"
	own    = "GORAIL"
)

// Spec describes the folder to make.
type Spec struct {
	Dir    string   // the folder, created if missing
	Plugin string   // libplugin_GORAIL.so
	Wheel  string   // site-packages with a NIXL wheel
	As     []string // further names for GORAIL
}

// Made describes the content of the folder.
type Made struct {
	Plugins string   // the value of NIXL_PLUGIN_DIR
	Stock   []string // usable stock plugins
	Aliases []string
	Hidden  []string // stock plugins hidden by an alias
}

var nameRule = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)

// Make makes the folder as s describes, also if an earlier call made it differently. It removes only links that it may
// have made itself. If the folder is not its own, it fails before any change. It does not disturb a process that has
// loaded plugins from the folder.
func Make(s Spec) (Made, error) {
	for _, name := range s.As {
		if !nameRule.MatchString(name) || name == own {
			return Made{}, fmt.Errorf("--as %q: not a name of another backend; UCX, LIBFABRIC, UCCL and Mooncake are", name)
		}
	}
	plugin, err := filepath.Abs(s.Plugin)
	if err != nil {
		return Made{}, err
	}
	if info, err := os.Stat(plugin); err != nil || !info.Mode().IsRegular() {
		return Made{}, fmt.Errorf("no plugin at %s: build it (make build), or say where it is with --plugin", s.Plugin)
	}
	w, err := readWheel(s.Wheel)
	if err != nil {
		return Made{}, err
	}
	dir, err := filepath.Abs(s.Dir)
	if err != nil {
		return Made{}, err
	}
	if err := claim(dir, w); err != nil {
		return Made{}, err
	}

	made := Made{Plugins: filepath.Join(dir, "plugins"), Aliases: slices.Compact(slices.Sorted(slices.Values(s.As)))}
	plugins := map[string]string{}
	for file, target := range w.plugins {
		plugins[file] = target
		name, isPlugin := strings.CutPrefix(strings.TrimSuffix(file, ".so"), prefix)
		switch {
		case isPlugin && slices.Contains(made.Aliases, name):
			made.Hidden = append(made.Hidden, name)
		case isPlugin && name != own:
			made.Stock = append(made.Stock, name)
		}
	}
	for _, name := range append(made.Aliases, own) {
		plugins[prefix+name+".so"] = plugin
	}
	slices.Sort(made.Stock)
	slices.Sort(made.Hidden)
	return made, errors.Join(fill(dir, w.libs), fill(made.Plugins, plugins))
}

// claim creates the folders. It refuses a folder that gorail plugins did not create.
func claim(dir string, w wheel) error {
	for _, theirs := range w.folders {
		if inside(dir, theirs) {
			return fmt.Errorf("--dir %s is inside the wheel (%s), which is not touched: choose another folder", dir, theirs)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, mark)); err == nil {
		return os.MkdirAll(filepath.Join(dir, "plugins"), 0o755)
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("--dir %s is not empty (it has %s) and was not made by gorail plugins: choose an empty or a new folder", dir, entries[0].Name())
	}
	if err := os.MkdirAll(filepath.Join(dir, "plugins"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, mark), []byte("Made by gorail plugins, which removes links from here when it is run again.\n"), 0o644)
}

// inside reports whether path is, or would be, dir or below dir. Links are resolved as far as path exists.
func inside(path, dir string) bool {
	rest := ""
	for at := path; ; at = filepath.Dir(at) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			path = filepath.Join(real, rest)
			break
		}
		if at == filepath.Dir(at) {
			break
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		real = dir
	}
	rel, err := filepath.Rel(real, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// fill makes a folder's links equal to links (name -> target).
func fill(dir string, links map[string]string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, wanted := links[e.Name()]; !wanted && e.Type() == os.ModeSymlink {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for name, target := range links {
		if err := link(target, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// link makes one link and replaces an existing link atomically. It refuses to replace anything but a link.
func link(target, at string) error {
	if old, err := os.Readlink(at); err == nil {
		if old == target {
			return nil
		}
	} else if _, err := os.Lstat(at); err == nil {
		return fmt.Errorf("%s exists and is not a link: remove or rename it", at)
	}
	temp := filepath.Join(filepath.Dir(at), "."+filepath.Base(at)+".new")
	if err := os.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, temp); err != nil {
		return err
	}
	return os.Rename(temp, at)
}
