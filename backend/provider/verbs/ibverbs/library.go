// Package ibverbs is the binding of libibverbs, which is loaded at run time, never linked: the plugin works where there is none, and says so.
//
// A Library has the calls of set-up, over one table of its functions (calls.go, ibv.h). A Rail and its QPs are what the core posts to and
// polls. Nothing is decided here. Posting and polling are small C files (verbs.h). Errors of calls are *clib.CallError.
package ibverbs

import (
	"fmt"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
)

// Default is the soname that dlopen looks for when no path is given.
const Default = "libibverbs.so.1"

var libraries clib.Cache[*Library]

// Load loads libibverbs once for each path. The error wraps provider.ErrNoLibrary.
func Load(path string) (*Library, error) {
	l, err := libraries.Get(path, func(path string) (*Library, error) {
		l, symbols := newLibrary()
		if err := clib.Load(path, "libibverbs", "rdma-core", symbols); err != nil {
			l.free()
			return nil, err
		}
		// Before kernel 5.13 a fork would part registered pages from the device. Newer ones need nothing, and it does nothing.
		l.forkInit()
		return l, nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: libibverbs %q: %w; install it (Debian: apt-get install libibverbs1 ibverbs-providers) or give "+
			"its path in option ibverbs_path", provider.ErrNoLibrary, path, err)
	}
	return l, nil
}
