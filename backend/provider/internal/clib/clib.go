// Package clib is what the C packages of several providers share: it loads a library by path (clib.go), defines the error of a C call
// (error.go), allocates (memory.go), and copies memory of the application, which may be unmapped or protected at any time, without harm to
// the process (guard.c; its calls are for C, in backend/include/gr_guard.h).
package clib

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17 -D_GNU_SOURCE
#cgo LDFLAGS: -ldl -lpthread
#include <dlfcn.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// Symbol is a function to look up in a library.
type Symbol struct {
	To            **[0]byte // receives the address: a member of a function table in C memory
	Name, Version string
	Optional      bool // older libraries lack the function: *To stays nil
}

// Load implements dlopen and dlvsym. The library stays loaded, because its threads and atexit handlers may outlive the
// caller. The error names the missing symbol. library and oldest are the name and the version that the caller needs.
func Load(path, library, oldest string, want []Symbol) error {
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	runtime.LockOSThread() // dlerror is per thread
	defer runtime.UnlockOSThread()
	dl := C.dlopen(cpath, C.RTLD_NOW|C.RTLD_LOCAL|C.RTLD_NODELETE)
	if dl == nil {
		return errors.New(C.GoString(C.dlerror()))
	}
	for _, s := range want {
		*s.To = (*[0]byte)(symbol(dl, s.Name, s.Version))
		if *s.To == nil && !s.Optional {
			return fmt.Errorf("the library has no %s@%s (not %s, or older than %s)", s.Name, s.Version, library, oldest)
		}
	}
	return nil
}

func symbol(dl unsafe.Pointer, name, version string) unsafe.Pointer {
	cname, cversion := C.CString(name), C.CString(version)
	defer C.free(unsafe.Pointer(cname))
	defer C.free(unsafe.Pointer(cversion))
	return C.dlvsym(dl, cname, cversion)
}

// Cache holds the loaded instances of one library in this process, by path. Failures are not cached. Its methods are
// safe for concurrent use.
type Cache[T any] struct {
	mu     sync.Mutex
	byPath map[string]T
}

// Get returns the cached value of a path. Get calls load if there is none.
func (c *Cache[T]) Get(path string, load func(path string) (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t, ok := c.byPath[path]; ok {
		return t, nil
	}
	t, err := load(path)
	if err != nil {
		return t, err
	}
	if c.byPath == nil {
		c.byPath = make(map[string]T)
	}
	c.byPath[path] = t
	return t, nil
}
