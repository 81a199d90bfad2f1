// Package ibverbs is the binding of libibverbs. The library is loaded at run time, never linked: without it the plugin
// still loads, and reports what is missing.
//
// A Library has the set-up calls, over one table of function pointers (calls.go, ibv.h). The core posts to and polls a
// Rail and its QPs. This package decides nothing. Posting and polling are small C files (verbs.h). Errors of calls are
// *clib.CallError.
package ibverbs

import (
	"fmt"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
)

// Default is the soname for dlopen if no path is given.
const Default = "libibverbs.so.1"

var libraries clib.Cache[*Library]

// Load loads libibverbs once for each path. The error wraps provider.ErrNoLibrary.
func Load(path string) (*Library, error) {
	l, err := libraries.Get(path, func(path string) (*Library, error) {
		l, symbols, err := newLibrary()
		if err != nil {
			return nil, err
		}
		if err := clib.Load(path, "libibverbs", "rdma-core", symbols); err != nil {
			l.free()
			return nil, err
		}
		// Before kernel 5.13, a fork would separate registered pages from the device. ibv_fork_init prevents that, and
		// does nothing on newer kernels.
		l.forkInit()
		return l, nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: libibverbs %q: %w; install it (Debian: apt-get install libibverbs1 ibverbs-providers) or give "+
			"its path in option ibverbs_path", provider.ErrNoLibrary, path, err)
	}
	return l, nil
}
