package plugindir

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gorail/nixlapi"
)

// FolderOf returns the folder that a backend's plugin is loaded from: plugins unless "", else GORAIL's own if the plugin is there, else
// the wheel's.
func FolderOf(backend, plugins, wheel string) string {
	if plugins != "" {
		return plugins
	}
	own := filepath.Dir(FindPlugin())
	if _, err := os.Stat(filepath.Join(own, "libplugin_"+backend+".so")); err == nil {
		abs, _ := filepath.Abs(own)
		return abs
	}
	return nixlapi.PluginDir(wheel)
}

// Backends names the backends whose plugins are in folders.
func Backends(folders ...string) (names []string) {
	for _, folder := range folders {
		files, _ := filepath.Glob(filepath.Join(folder, prefix+"*.so"))
		for _, file := range files {
			if _, err := os.Stat(file); err == nil { // no link to nothing
				names = append(names, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), prefix), ".so"))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
