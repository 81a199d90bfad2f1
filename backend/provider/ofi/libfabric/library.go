// Package libfabric is the binding of libfabric, which is loaded at run time and never linked: one binary works with 1.9 up to 2.x, and says what
// is missing where there is none.
//
// A Library lists devices as Infos; a Rail is one that is opened: what the core posts to and polls. Nothing is decided here. calls.go has
// libfabric's calls for set-up, one each. Posting, polling and registering are small C files (ofi.h), reached through core.go: the core calls
// them for each operation, with the rail's lock held.
package libfabric

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
)

// Default is the soname that dlopen looks for when no path is given.
const Default = "libfabric.so.1"

// Library is a loaded libfabric. Its methods are safe for concurrent use.
type Library struct {
	path      string
	calls     calls
	version   Version // fi_version
	api       Version // what we ask for: the library's, or the newest that we know
	providers []string
}

var libraries clib.Cache[*Library]

// Load loads libfabric once for each path. Implements dlopen, dlvsym and the first fi_getinfo; signal handlers and environment of
// the process are the same afterwards (guard.go). The error wraps provider.ErrNoLibrary.
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
	c, symbols, ok := newCalls()
	if !ok {
		return nil, errors.New("out of memory")
	}
	if err := clib.Load(path, "libfabric", apiMin.String(), symbols); err != nil {
		c.free()
		return nil, err
	}
	l := &Library{path: path, calls: c, version: c.version()}
	if l.version < apiMin {
		c.free()
		return nil, fmt.Errorf("it is libfabric %s and %s is the oldest usable", l.version, apiMin)
	}
	l.api = min(l.version, apiMax)
	l.providers = l.start()
	return l, nil
}

// start makes libfabric start (and load) all of its providers (60-120 ms) by the cheapest call that does. Their names come back.
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

// getinfo implements fi_getinfo. The list is the caller's, for freeinfo.
func (l *Library) getinfo(flags uint64, hints *fiInfo) (*fiInfo, error) {
	list, rc := l.calls.getinfo(l.api, flags, hints)
	if rc != 0 {
		return nil, &clib.CallError{Errno: errno(rc), Text: l.calls.strerror(-rc)}
	}
	return list, nil
}

// Version is the library's own.
func (l *Library) Version() Version { return l.version }

// API is the version that it is asked for.
func (l *Library) API() Version { return l.api }

// Describe says which library it is, and what is in it.
func (l *Library) Describe() string {
	return fmt.Sprintf("libfabric %s (%s; providers: %s)", l.version, l.path, strings.Join(l.providers, " "))
}

// Errno is the error of a call, in libfabric's words: a *clib.CallError.
func (l *Library) Errno(call string, e syscall.Errno) error {
	return &clib.CallError{Call: call, Errno: e, Text: l.calls.strerror(int(e))}
}

// check is nil unless the call returned a negative code.
func (l *Library) check(call string, rc int) error {
	if rc >= 0 {
		return nil
	}
	return l.Errno(call, errno(rc))
}
