package ofi

import (
	"errors"
	"fmt"
	"strings"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
)

// library is a loaded libfabric. Its threads and atexit handlers may outlive us.
type library struct {
	path      string
	lib       *fiLib
	version   uint32 // fi_version
	api       uint32 // what we ask for: the library's, or the newest that we know
	providers []string
}

// The newest API whose structures and semantics were read, and the oldest; newer libraries are asked for this one.
const (
	apiMax = 2<<16 | 6
	apiMin = 1<<16 | 9
)

var libraries clib.Cache[*library]

// loadLibrary loads libfabric once for each path. Implements dlopen, dlvsym and the first fi_getinfo; signal handlers and environment of
// the process are the same afterwards (guard.go). The error wraps provider.ErrNoLibrary.
func loadLibrary(path string) (*library, error) {
	l, err := libraries.Get(path, func(path string) (l *library, err error) {
		guarded(func() { l, err = load(path) })
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: libfabric %q: %w; install it (Debian: apt-get install libfabric1) or give its path "+
			"in option libfabric_path", provider.ErrNoLibrary, path, err)
	}
	return l, nil
}

func load(path string) (*library, error) {
	lib, symbols := newLib()
	if lib == nil {
		return nil, errors.New("out of memory")
	}
	if err := clib.Load(path, "libfabric", "1.9", symbols); err != nil {
		freeLib(lib)
		return nil, err
	}
	l := &library{path: path, lib: lib, version: fiVersion(lib)}
	if l.version < apiMin {
		freeLib(lib)
		return nil, fmt.Errorf("it is libfabric %d.%d and 1.9 is the oldest usable", l.version>>16, l.version&0xffff)
	}
	l.api = min(l.version, apiMax)
	l.providers = l.start()
	return l, nil
}

// start makes libfabric start (and load) all of its providers (60-120 ms) by the cheapest call that does. Their names come back.
func (l *library) start() (names []string) {
	list, err := l.getinfo(fiProvAttrOnly, nil)
	if err != nil {
		return nil
	}
	defer l.freeinfo(list)
	for p := list; p != nil; p = p.next {
		if p.fabric_attr != nil && p.fabric_attr.prov_name != nil {
			names = append(names, text(p.fabric_attr.prov_name))
		}
	}
	return names
}

// Describe implements lister.
func (l *library) Describe() string {
	return fmt.Sprintf("libfabric %d.%d (%s; providers: %s)", l.version>>16, l.version&0xffff, l.path, strings.Join(l.providers, " "))
}
