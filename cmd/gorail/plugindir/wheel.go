package plugindir

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// wheel is the content of an installed NIXL wheel.
type wheel struct {
	folders []string          // the wheel's own
	plugins map[string]string // file name -> path
	libs    map[string]string // libraries, and folders with modules of libraries
}

// readWheel reads a site-packages folder. Wheels for other CUDA versions have the same layout under another name.
func readWheel(site string) (wheel, error) {
	if site == "" {
		return wheel{}, errors.New("no NIXL wheel found: say where one is installed with --wheel (its site-packages folder)")
	}
	site, err := filepath.Abs(site)
	if err != nil {
		return wheel{}, err
	}
	nixl, err := one(filepath.Join(site, ".nixl_cu*.mesonpy.libs"))
	if err != nil {
		return wheel{}, err
	}
	bundle, err := one(filepath.Join(site, "nixl_cu*.libs"))
	if err != nil {
		return wheel{}, err
	}
	w := wheel{folders: []string{nixl, bundle}, plugins: map[string]string{}, libs: map[string]string{}}
	stock := filepath.Join(bundle, "nixl")
	if err := list(stock, w.plugins, func(e os.DirEntry) bool { return strings.Contains(e.Name(), ".so") }); err != nil {
		return wheel{}, fmt.Errorf("--wheel %s: no stock plugins: %w", site, err)
	}
	for _, folder := range w.folders {
		err := list(folder, w.libs, func(e os.DirEntry) bool {
			if e.IsDir() {
				return e.Name() != "nixl" && e.Name() != "plugins" // the stock plugins: linked one by one
			}
			return strings.Contains(e.Name(), ".so")
		})
		if err != nil {
			return wheel{}, err
		}
	}
	return w, nil
}

func one(pattern string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("no NIXL wheel: nothing like %s; --wheel takes the site-packages folder that has nixl-cu12 or nixl-cu13", pattern)
	}
	if len(found) > 1 {
		return "", fmt.Errorf("two NIXL wheels in one folder: %s; install the one that is used into a folder of its own", strings.Join(found, ", "))
	}
	return found[0], nil
}

func list(dir string, into map[string]string, take func(os.DirEntry) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if take(e) {
			into[e.Name()] = filepath.Join(dir, e.Name())
		}
	}
	return nil
}

// FindWheel finds a wheel: NIXL_WHEEL_DIR, then the wheel that python3 imports. It returns "" if there is none.
func FindWheel() string {
	if dir := os.Getenv("NIXL_WHEEL_DIR"); dir != "" {
		return dir
	}
	const ask = `import importlib.util as u
for n in ("nixl_cu12", "nixl_cu13"):
    s = u.find_spec(n)
    if s: print(s.submodule_search_locations[0]); break`
	out, err := exec.Command("python3", "-c", ask).Output()
	if err != nil || len(out) == 0 {
		return ""
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
}

// installed is the folder where meson install puts the plugin, relative to the prefix or absolute. The build sets it.
var installed = ""

// FindPlugin finds libplugin_GORAIL.so: in GORAIL_PLUGIN_DIR, beside the program, in the installed folder, in ./build.
// It returns the last path that it tried if there is none.
func FindPlugin() string {
	var dirs []string
	if dir := os.Getenv("GORAIL_PLUGIN_DIR"); dir != "" {
		dirs = append(dirs, dir)
	}
	if exe, err := os.Executable(); err == nil {
		bin := filepath.Dir(exe)
		dirs = append(dirs, bin)
		if filepath.IsAbs(installed) {
			dirs = append(dirs, installed)
		} else if installed != "" {
			dirs = append(dirs, filepath.Join(filepath.Dir(bin), installed))
		}
	}
	path := ""
	for _, dir := range append(dirs, "build") {
		path = filepath.Join(dir, prefix+own+".so")
		if _, err := os.Stat(path); err == nil {
			break
		}
	}
	return path
}
