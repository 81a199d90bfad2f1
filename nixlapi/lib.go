// Package nixlapi drives NIXL agents from Go through libnixl_capi.so, NIXL's flat C API, as shipped in the pip wheels
// (1.0.0 .. 1.5.1 and later). gorail bench and the tests use it. The plugin does not.
//
// Open loads the library at run time, so a program builds without NIXL. A function missing in a wheel fails with
// ErrMissing when it is called.
//
// Ownership: the caller releases its objects in this order: every Xfer and Dlist, then the Agent. Registered memory
// must stay mapped until Deregister. Memory on the Go heap may move: use Alloc, or C memory.
//
// Errors are of type *Error and name the C call. StatusOf returns the status.
//
// An Agent is as safe for concurrent use as its NIXL agent: not at all unless Config.Sync allows it.
//
// Measuring loops (Bench, Serve, Notify, Loop, Stream) run in C. Go's scheduler does not affect their times.
package nixlapi

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
)

// Lib is the loaded library. There is one per process, as NIXL keeps its plugin manager in a process-wide singleton.
type Lib struct{ dir string }

var (
	openMu sync.Mutex
	opened *Lib
)

// A wheel is named by its site-packages folder, or by the package's folder in it (SITE/nixl_cu13) where there are several.
func wheel(dir string) (site, variant string) {
	if base := filepath.Base(dir); strings.HasPrefix(base, "nixl_") {
		return filepath.Dir(dir), strings.TrimPrefix(base, "nixl_")
	}
	return dir, "cu*"
}

// LibDir finds the folder of NIXL's own libraries of a wheel.
func LibDir(wheelDir string) (string, error) {
	site, variant := wheel(wheelDir)
	found, _ := filepath.Glob(filepath.Join(site, ".nixl_"+variant+".mesonpy.libs", "libnixl_capi.so"))
	if len(found) == 0 {
		return "", fmt.Errorf("no NIXL wheel in %s", wheelDir)
	}
	return filepath.Dir(found[0]), nil
}

// BundleDir finds the folder of the wheel's bundled libraries.
func BundleDir(wheelDir string) string {
	site, variant := wheel(wheelDir)
	found, _ := filepath.Glob(filepath.Join(site, "nixl_"+variant+".libs"))
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

// PluginDir finds the folder of the stock plugins of a wheel.
func PluginDir(wheelDir string) string { return filepath.Join(BundleDir(wheelDir), "nixl") }

// Open loads libnixl_capi.so of a wheel, once per process. It fails if another folder was opened
// before. NIXL reads its environment (NIXL_PLUGIN_DIR and others) when the first agent is created. Safe for concurrent
// use.
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
		// The wheel's run path may not contain its own folder. Load the other libraries first; the library then finds
		// them by soname.
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
