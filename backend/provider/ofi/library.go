package ofi

import (
	"fmt"
	"runtime"
	"strings"
	"sync"

	"gorail/backend/provider"
)

// library is a loaded libfabric. It stays loaded: its threads and atexit handlers may outlive us.
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

// libraries holds what this process has loaded, by path. Nothing is ever unloaded; a failure is not remembered.
var libraries struct {
	sync.Mutex
	byPath map[string]*library
}

// loadLibrary loads libfabric once. Implements dlopen, dlvsym and the first fi_getinfo; signal handlers and environment of
// the process are the same afterwards (guard.go). The error wraps provider.ErrNoLibrary.
func loadLibrary(path string) (*library, error) {
	libraries.Lock()
	defer libraries.Unlock()
	if l := libraries.byPath[path]; l != nil {
		return l, nil
	}
	l := &library{path: path}
	var err error
	guarded(func() { err = l.load() })
	if err != nil {
		return nil, fmt.Errorf("%w: libfabric %q: %w; install it (Debian: apt-get install libfabric1) or give its path "+
			"in option libfabric_path", provider.ErrNoLibrary, path, err)
	}
	if libraries.byPath == nil {
		libraries.byPath = make(map[string]*library)
	}
	libraries.byPath[path] = l
	return l, nil
}

func (l *library) load() error {
	runtime.LockOSThread() // dlerror is the thread's
	defer runtime.UnlockOSThread()
	dl, err := dlopen(l.path)
	if err != nil {
		return err
	}
	if l.lib, err = resolve(dl); err != nil {
		return err
	}
	if l.version = fiVersion(l.lib); l.version < apiMin {
		freeLib(l.lib)
		return fmt.Errorf("it is libfabric %d.%d and 1.9 is the oldest usable", l.version>>16, l.version&0xffff)
	}
	l.api = min(l.version, apiMax)
	l.providers = l.start()
	return nil
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
