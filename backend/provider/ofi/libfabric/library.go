// Package libfabric is the binding of libfabric. The library is loaded at run time, never linked: one binary works with
// 1.9 up to 2.x, and reports what is missing without a library.
//
// A Library lists devices as Infos. A Rail is an opened device, which the core posts to and polls. This package decides
// nothing. calls.go has libfabric's set-up calls, one function each. Posting, polling and registration are small C
// files (ofi.h), reached through core.go. The core calls them for each operation with the rail's lock held.
package libfabric

import (
	"fmt"
	"strings"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
)

// Default is the soname for dlopen if no path is given.
const Default = "libfabric.so.1"

// Library is a loaded libfabric. Its methods are safe for concurrent use.
type Library struct {
	path      string
	calls     calls
	version   Version // fi_version
	api       Version // the API version that we request: the library's, capped at apiMax
	providers []string
}

var libraries clib.Cache[*Library]

// Load loads libfabric once for each path. Implements dlopen, dlvsym and the first fi_getinfo. Afterwards signal
// handlers and environment of the process are unchanged (guard.go). The error wraps provider.ErrNoLibrary.
func Load(path string) (*Library, error) {
	l, err := libraries.Get(path, func(path string) (l *Library, err error) {
		guarded(func() { l, err = load(path) })
		return l, err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: libfabric %q: %w; install it (Debian: apt-get install libfabric1) or give its path "+
			"in option libfabric_path", provider.ErrNoLibrary, path, err)
	}
	return l, nil
}

func load(path string) (*Library, error) {
	c, symbols, err := newCalls()
	if err != nil {
		return nil, err
	}
	if err := clib.Load(path, "libfabric", apiMin.String(), symbols); err != nil {
		c.free()
		return nil, err
	}
	l := &Library{path: path, calls: c, version: c.version()}
	if l.version < apiMin {
		c.free()
		return nil, fmt.Errorf("version %s is too old; the oldest usable libfabric is %s", l.version, apiMin)
	}
	l.api = min(l.version, apiMax)
	l.providers = l.start()
	return l, nil
}

// start makes libfabric initialize and load all of its providers (60-120 ms) by the cheapest call that does so. It
// returns their names.
func (l *Library) start() (names []string) {
	list, err := l.getinfo(fiProvAttrOnly, nil)
	if err != nil {
		return nil
	}
	defer l.calls.freeinfo(list)
	for p := list; p != nil; p = p.next {
		if p.fabric_attr != nil && p.fabric_attr.prov_name != nil {
			names = append(names, text(p.fabric_attr.prov_name))
		}
	}
	return names
}

// getinfo implements fi_getinfo. The caller frees the list with freeinfo.
func (l *Library) getinfo(flags uint64, hints *fiInfo) (*fiInfo, error) {
	list, rc := l.calls.getinfo(l.api, flags, hints)
	if rc != 0 {
		return nil, &clib.CallError{Errno: errno(rc), Text: l.calls.strerror(-rc)}
	}
	return list, nil
}

// Version returns the library's own version.
func (l *Library) Version() Version { return l.version }

// API returns the API version that we request.
func (l *Library) API() Version { return l.api }

// Describe returns version, path and providers of the library.
func (l *Library) Describe() string {
	return fmt.Sprintf("libfabric %s (%s; providers: %s)", l.version, l.path, strings.Join(l.providers, " "))
}

// Errno returns the error of a call with libfabric's text: a *clib.CallError.
func (l *Library) Errno(call string, e syscall.Errno) error {
	return &clib.CallError{Call: call, Errno: e, Text: l.calls.strerror(int(e))}
}

// check returns nil unless the call returned a negative code.
func (l *Library) check(call string, rc int) error {
	if rc >= 0 {
		return nil
	}
	return l.Errno(call, errno(rc))
}
