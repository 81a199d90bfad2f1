// Package nixl drives real NIXL agents from Go tests through libnixl_capi.so,
// NIXL's flat C API, as the pip wheels ship it (1.0.0 .. 1.5.1 and later).
//
// The library is loaded at run time, so the tests build without NIXL. A
// function that a wheel lacks fails with ErrMissing when it is called.
//
// An Agent is as safe for concurrent use as the NIXL agent behind it: not at
// all unless Config.Sync says otherwise.
package nixl

import (
	"fmt"
	"path/filepath"
	"sync"
)

// Lib is the loaded library. There is one per process, as NIXL keeps its plugin
// manager in a process-wide singleton.
type Lib struct{ dir string }

var (
	openMu sync.Mutex
	opened *Lib
)

// LibDir finds the folder of NIXL's own libraries in a site-packages folder.
func LibDir(wheelDir string) (string, error) {
	found, _ := filepath.Glob(filepath.Join(wheelDir, ".nixl_cu*.mesonpy.libs", "libnixl_capi.so"))
	if len(found) == 0 {
		return "", fmt.Errorf("no NIXL wheel in %s", wheelDir)
	}
	return filepath.Dir(found[0]), nil
}

// BundleDir finds the folder of the libraries that the wheel bundles.
func BundleDir(wheelDir string) string {
	found, _ := filepath.Glob(filepath.Join(wheelDir, "nixl_cu*.libs"))
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// PluginDir finds the folder of the stock plugins in a site-packages folder.
func PluginDir(wheelDir string) string { return filepath.Join(BundleDir(wheelDir), "nixl") }

// Open loads libnixl_capi.so from a site-packages folder. NIXL reads its
// environment (NIXL_PLUGIN_DIR and so on) when the first agent is made.
func Open(wheelDir string) (*Lib, error) {
	openMu.Lock()
	defer openMu.Unlock()
	if opened != nil {
		if opened.dir != wheelDir {
			return nil, fmt.Errorf("already open from %s", opened.dir)
		}
		return opened, nil
	}
	dir, err := LibDir(wheelDir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "libnixl_capi.so")
	if err := cOpen(path); err != nil {
		// A wheel whose run path does not reach its own folder: load the
		// neighbours first, then the library finds them by soname.
		for _, n := range []string{"libnixl_build.so", "libserdes.so", "libstream.so", "libnixl_common.so", "libnixl.so"} {
			_ = cPreload(filepath.Join(dir, n))
		}
		if again := cOpen(path); again != nil {
			return nil, err
		}
	}
	opened = &Lib{dir: wheelDir}
	return opened, nil
}
