package verbs

import (
	"fmt"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
)

var libraries clib.Cache[*library]

// loadLibrary loads libibverbs once for each path. The error wraps provider.ErrNoLibrary.
func loadLibrary(path string) (*library, error) {
	l, err := libraries.Get(path, func(path string) (*library, error) {
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
