package plugindir

import (
	"os"
	"path/filepath"

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
