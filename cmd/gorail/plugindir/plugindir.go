// Package plugindir makes a folder that NIXL_PLUGIN_DIR can point to. The variable replaces NIXL's own plugin folder, so the stock
// plugins of an installed wheel are linked beside GORAIL, and GORAIL once more under names that programs have built in.
//
// The stock plugins look for the libraries that the wheel bundles in $ORIGIN/.., the folder above the one they were opened in:
//
//	D/                    links to every library of the wheel, and to the folders they load modules from (ucx)
//	D/plugins/            links to GORAIL, to the stock plugins, and aliases of GORAIL
//	D/.gorail-plugins     says that the folder is ours
//
// Everything but the mark is a symbolic link: nothing is copied, and the wheel is only read.
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

// Spec says what goes into the folder.
type Spec struct {
	Dir    string   // the folder, made if it is missing
	Plugin string   // libplugin_GORAIL.so
	Wheel  string   // site-packages with a NIXL wheel
	As     []string // names under which GORAIL is found as well
}

// Made says what is in the folder.
type Made struct {
	Plugins string   // what NIXL_PLUGIN_DIR has to say
	Stock   []string // stock plugins that can be used
	Aliases []string
	Hidden  []string // stock plugins that an alias stands in front of
}

var nameRule = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)

// Make makes the folder what s says, whatever an earlier call has made it. It removes nothing but links that it may have made itself,
// and fails before it has changed anything when the folder is not its own. A process that has loaded from the folder is not disturbed.
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

// claim makes the folders, or refuses one that is somebody else's.
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
		return fmt.Errorf("--dir %s has something in it (%s) and was not made by gorail plugins: choose an empty or a new folder", dir, entries[0].Name())
	}
	if err := os.MkdirAll(filepath.Join(dir, "plugins"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, mark), []byte("Made by gorail plugins, which removes links from here when it is run again.\n"), 0o644)
}

// inside tells whether path is, or would be, dir or below it, links resolved as far as path exists.
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

// fill makes the links of a folder exactly these (name -> target).
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

// link makes one link, in place of another one at once; what is not a link stays, and is an error.
func link(target, at string) error {
	if old, err := os.Readlink(at); err == nil {
		if old == target {
			return nil
		}
	} else if _, err := os.Lstat(at); err == nil {
		return fmt.Errorf("%s is in the way: it is not a link", at)
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
