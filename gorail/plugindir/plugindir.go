// Package plugindir creates a folder for NIXL_PLUGIN_DIR. This variable replaces NIXL's own plugin folder. The folder
// therefore links GORAIL, the stock plugins of an installed wheel or of another folder, and GORAIL again under names
// that programs have built in. Telemetry exporters and trace backends are plugins, too.
//
// The stock plugins look for their libraries in $ORIGIN/.., the folder above the folder that they were opened in:
//
//	D/                    links to every library beside the stock plugins, and to folders with modules (ucx)
//	D/plugins/            links to GORAIL, to the stock plugins, and aliases of GORAIL
//	D/.gorail-plugins     marks the folder as ours, and says what it was made from
//	D/.gorail-plugins.lock  the lock for changes
//
// Everything but these two is a symbolic link. Nothing is copied, and the wheel is only read.
package plugindir

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"gorail/backend/host"
)

const (
	mark   = ".gorail-plugins"
	prefix = "libplugin_"
	own    = "GORAIL"
)

// Spec describes the folder to make. Dir or Cache is set.
type Spec struct {
	Dir    string   // the folder, created if missing
	Cache  string   // a folder for many: the one to make is below, and its name depends on the rest
	Plugin string   // libplugin_GORAIL.so
	Wheel  string   // site-packages with a NIXL wheel
	CUDA   string   // which of several wheels there: "12"; "" chooses as NIXL's package nixl does
	From   string   // a folder with stock plugins, in place of a wheel
	As     []string // further names for GORAIL
}

// Made describes the content of the folder.
type Made struct {
	Plugins string   `json:"plugins"` // the value of NIXL_PLUGIN_DIR
	Source  string   `json:"source"`  // where the stock plugins are from
	Why     string   `json:"why"`     // why from there, "" if there was no choice
	Stock   []string `json:"stock"`   // usable stock plugins
	Aliases []string `json:"aliases"`
	Hidden  []string `json:"hidden"` // stock plugins hidden by an alias
}

var nameRule = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)

// Make makes the folder as s describes, also if an earlier call made it differently. It removes only links that it may
// have made itself. If the folder is not its own, it fails before any change. It does not disturb a process that has
// loaded plugins from the folder. Many processes may make one folder at once: they take turns.
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
	src, err := open(s)
	if err != nil {
		return Made{}, err
	}
	made := Made{Source: src.says(), Why: src.why, Aliases: slices.Compact(slices.Sorted(slices.Values(s.As)))}
	dir, err := filepath.Abs(s.Dir)
	if s.Dir == "" {
		dir, err = filepath.Abs(filepath.Join(s.Cache, key(append([]string{plugin, src.origin.String()}, made.Aliases...))))
	}
	if err != nil {
		return Made{}, err
	}
	var locked *os.File
	for deadline := time.Now().Add(claimWait); ; time.Sleep(lockStep) { // Clean may take the folder away meanwhile
		if locked, err = claim(dir, src, host.Owners(plugin)); !errors.Is(err, os.ErrNotExist) || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		return Made{}, err
	}
	defer locked.Close()

	made.Plugins = filepath.Join(dir, "plugins")
	plugins := map[string]string{}
	for file, target := range src.plugins {
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
	for deadline := time.Now().Add(changeWait); ; time.Sleep(lockStep) {
		err = errors.Join(fill(dir, src.libs), fill(made.Plugins, plugins))
		if locked != nil || !readOnly(err) || time.Now().After(deadline) { // without the lock: another may be changing the folder
			return made, err
		}
	}
}

// key names a folder of a cache.
func key(parts []string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:8])
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
