package verbs

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "verbs.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/provider"
)

// library is a loaded libibverbs.
type library struct{ c *C.vb_lib }

// loaded holds what this process has loaded of one library, by path. Nothing is ever unloaded; a failure is not remembered.
type loaded[T any] struct {
	mu     sync.Mutex
	byPath map[string]*T
}

// load calls open once for a path. Implements dlopen and dlvsym; the error is the loader's.
func (l *loaded[T]) load(path string, open func(path, reason *C.char, room C.size_t) *T) (*T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.byPath[path]; c != nil {
		return c, nil
	}
	const room = 1024
	reason := (*C.char)(C.malloc(room))
	defer C.free(unsafe.Pointer(reason))
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	c := open(cpath, reason, room)
	if c == nil {
		return nil, errors.New(C.GoString(reason))
	}
	if l.byPath == nil {
		l.byPath = make(map[string]*T)
	}
	l.byPath[path] = c
	return c, nil
}

var libraries loaded[C.vb_lib]

// loadLibrary loads libibverbs once. The error wraps provider.ErrNoLibrary.
func loadLibrary(path string) (*library, error) {
	c, err := libraries.load(path, func(path, reason *C.char, room C.size_t) *C.vb_lib { return C.vb_load(path, reason, room) })
	if err != nil {
		return nil, fmt.Errorf("%w: libibverbs %q: %w; install it (Debian: apt-get install libibverbs1 ibverbs-providers) or give "+
			"its path in option ibverbs_path", provider.ErrNoLibrary, path, err)
	}
	return &library{c}, nil
}

// port is one port of a device, as the library sees it.
type port struct {
	device                  string
	number                  int
	iwarp, ethernet, active bool
	state                   string
	gids                    int
	mbps                    uint64
	step                    string // the call that err is of
	err                     syscall.Errno
}

// scan implements ibv_get_device_list, ibv_query_device and ibv_query_port. No devices is no error.
func (l *library) scan() ([]port, error) {
	var list *C.vb_port
	n := C.vb_scan(l.c, &list)
	if n < 0 {
		if errno := syscall.Errno(-n); errno != syscall.ENOSYS {
			return nil, fmt.Errorf("%w: ibv_get_device_list: %w%s", provider.ErrUnusable, errno, limit(errno))
		}
		return nil, nil
	}
	defer C.free(unsafe.Pointer(list))
	states := []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	var ports []port
	for _, p := range unsafe.Slice(list, int(n)) {
		o := port{device: C.GoString(&p.device[0]), number: int(p.port), iwarp: p.iwarp != 0, ethernet: p.ethernet != 0,
			active: p.active != 0, gids: int(p.gids), mbps: uint64(p.mbps), state: "unknown"}
		if s := int(p.state); s >= 0 && s < len(states) {
			o.state = states[s]
		}
		if p.err != 0 {
			o.step, o.err = C.GoString(p.step), syscall.Errno(p.err)
		}
		ports = append(ports, o)
	}
	return ports, nil
}
