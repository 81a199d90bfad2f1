package ofi

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror -std=gnu17
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "ofi.h"
*/
import "C"

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"gorail/backend/provider"
)

// library is a loaded libfabric.
type library struct {
	path      string
	lib       *C.ofi_lib
	providers []string
}

// libraries holds what this process has loaded, by path. Nothing is ever unloaded; a failure is not remembered.
var libraries struct {
	sync.Mutex
	byPath map[string]*library
}

// loadLibrary loads libfabric once. Implements dlopen, dlvsym and the first fi_getinfo; signal handlers and environment of
// the process are the same afterwards (guard.c). The error wraps provider.ErrNoLibrary.
func loadLibrary(path string) (*library, error) {
	libraries.Lock()
	defer libraries.Unlock()
	if l := libraries.byPath[path]; l != nil {
		return l, nil
	}
	const room = 4096
	buf := C.malloc(2 * room)
	defer C.free(buf)
	names, reason := (*C.char)(buf), (*C.char)(unsafe.Add(buf, room))
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	lib := C.ofi_load(cpath, names, room, reason, room)
	if lib == nil {
		return nil, fmt.Errorf("%w: libfabric %q: %s; install it (Debian: apt-get install libfabric1) or give its path "+
			"in option libfabric_path", provider.ErrNoLibrary, path, C.GoString(reason))
	}
	l := &library{path: path, lib: lib, providers: strings.Fields(C.GoString(names))}
	if libraries.byPath == nil {
		libraries.byPath = make(map[string]*library)
	}
	libraries.byPath[path] = l
	return l, nil
}

// Describe implements lister.
func (l *library) Describe() string {
	return fmt.Sprintf("libfabric %d.%d (%s; providers: %s)", l.lib.version>>16, l.lib.version&0xffff, l.path,
		strings.Join(l.providers, " "))
}

// asker is a library that is asked for what an operator wants; it implements lister.
type asker struct {
	*library
	asked C.ofi_asked
	tune  Tuning
	// why devices are not asked to know memory of GPUs; nil: they are
	unasked error
}

// List implements lister through fi_getinfo. A fabric must offer delivery-complete operations: without them a WRITE ends, and its
// notification goes out, before the data is in place. What the operator asks for is not given up either.
func (l asker) List(fabric string) ([]*entry, error) {
	got, err := l.delivering(fabric)
	if len(got) > 0 {
		return got, err
	}
	plain := asker{library: l.library}
	if hints := l.tune.hints(); hints != "" {
		if own, _ := plain.delivering(fabric); len(own) > 0 {
			return nil, fmt.Errorf("%w: %s/%s refuses the options %s; by itself it has tx_depth=%d, rx_depth=%d, threading=safe",
				provider.ErrUnusable, fabric, own[0].domain, hints, own[0].txDepth, own[0].rxDepth)
		}
	}
	if early, _ := plain.list(fabric, 0); len(early) > 0 {
		return nil, fmt.Errorf("%w: %s/%s offers no FI_DELIVERY_COMPLETE: a WRITE would end before its data is in place at the peer; "+
			"take another fabric with option provider, or a libfabric whose %s has it (option libfabric_path)", provider.ErrUnusable, fabric, early[0].domain, fabric)
	}
	return got, err
}

// delivering are the devices whose completions say that data is in place.
func (l asker) delivering(fabric string) ([]*entry, error) {
	got, err := l.list(fabric, C.OFI_WANT_DELIVERY)
	if err != nil || len(got) == 0 {
		return nil, err
	}
	return l.withHMEM(got, fabric, C.OFI_WANT_DELIVERY), nil
}

// withHMEM takes devices as those that know memory of GPUs where they do; nothing is lost that doesn't.
func (l asker) withHMEM(got []*entry, fabric string, want C.int) []*entry {
	if l.unasked != nil || !slices.ContainsFunc(got, func(e *entry) bool { return !e.sockets() }) {
		return got
	}
	able, err := l.list(fabric, want|C.OFI_WANT_HMEM)
	if err != nil {
		return got
	}
	for i, e := range got {
		same := func(a *entry) bool {
			return a.domain == e.domain && a.fabric == e.fabric && a.protocol == e.protocol && a.src == e.src
		}
		if k := slices.IndexFunc(able, same); k >= 0 && !e.sockets() {
			able[k].hmem = true
			got[i] = able[k]
		}
	}
	return got
}

func (l asker) list(fabric string, want C.int) ([]*entry, error) {
	cname := C.CString(fabric)
	defer C.free(unsafe.Pointer(cname))
	var first *C.struct_fi_info
	if rc := C.ofi_getinfo(l.lib, cname, want, &l.asked, &first); rc != 0 {
		return nil, l.error(rc)
	}
	// The list lives while an entry, or a rail opened from one, does.
	h := &handle{lib: l.library, first: unsafe.Pointer(first)}
	runtime.AddCleanup(h, freeInfo, freeArg{l.library, h.first})
	var out []*entry
	for p := first; p != nil; p = p.next {
		var d C.ofi_desc
		C.ofi_describe(p, &d)
		e := &entry{
			provider: C.GoString(d.provider), fabric: C.GoString(d.fabric), domain: C.GoString(d.domain),
			nic: C.GoString(d.nic), protocol: uint32(d.protocol), maxMsg: uint64(d.max_msg), bps: uint64(d.link_bps),
			txDepth: uint64(d.tx_depth), rxDepth: uint64(d.rx_depth), ip: d.ip != 0, handle: h, info: unsafe.Pointer(p), unasked: l.unasked,
		}
		if e.ip {
			e.src = sockaddr(C.GoBytes(d.src, C.int(d.src_len)))
		}
		if d.has_pci != 0 {
			e.pci = fmt.Sprintf("%04x:%02x:%02x.%x", d.pci[0], d.pci[1], d.pci[2], d.pci[3])
		}
		if k := l.tune.key(e.domain); k != nil && e.provider == "cxi" {
			if rc := C.ofi_set_key(p, C.uint32_t(k.Service), C.uint16_t(k.VNI)); rc != 0 {
				return nil, l.error(rc)
			}
		}
		// prov_name as a hint also brings layers over that provider ("net;ofi_rxm"): those are other fabrics.
		if strings.EqualFold(e.provider, fabric) {
			out = append(out, e)
		}
	}
	return out, nil
}

// handle owns one result of fi_getinfo.
type handle struct {
	lib   *library
	first unsafe.Pointer
}

type freeArg struct {
	lib   *library
	first unsafe.Pointer
}

func freeInfo(a freeArg) { C.ofi_freeinfo(a.lib.lib, (*C.struct_fi_info)(a.first)) }

// error turns a negative errno of libfabric into words. Implements fi_strerror.
func (l *library) error(rc C.int) error {
	return &Error{Errno: int(-rc), text: C.GoString(C.ofi_strerror(l.lib, -rc))}
}

// sockaddr reads the IP address out of a struct sockaddr_in or sockaddr_in6; anything else gives the zero Addr. Only for
// addresses that are known to be of that form: other fabrics' may look like it.
func sockaddr(b []byte) netip.Addr {
	if len(b) < 2 {
		return netip.Addr{}
	}
	switch family := *(*uint16)(unsafe.Pointer(&b[0])); {
	case family == 2 && len(b) >= 8: // AF_INET
		return netip.AddrFrom4([4]byte(b[4:8]))
	case family == 10 && len(b) >= 24: // AF_INET6
		return netip.AddrFrom16([16]byte(b[8:24]))
	}
	return netip.Addr{}
}
