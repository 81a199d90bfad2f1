package verbs

/*
#include <stdlib.h>
#include "cm.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"gorail/backend/provider"
)

// DefaultCMLibrary is the soname that dlopen looks for when Options.CMLibraryPath is empty.
const DefaultCMLibrary = "librdmacm.so.1"

// cmLibrary is a loaded librdmacm.
type cmLibrary struct{ c *C.vb_cm_lib }

var cmLibraries loaded[C.vb_cm_lib]

// loadCMLibrary loads librdmacm once. The error wraps provider.ErrNoLibrary.
func loadCMLibrary(path string) (*cmLibrary, error) {
	c, err := cmLibraries.load(path, func(path, reason *C.char, room C.size_t) *C.vb_cm_lib { return C.vb_cm_load(path, reason, room) })
	if err != nil {
		return nil, fmt.Errorf("%w: librdmacm %q, which connects iWARP devices: %w; install it (Debian: apt-get install librdmacm1) or "+
			"give its path in option rdmacm_path", provider.ErrNoLibrary, path, err)
	}
	return &cmLibrary{c}, nil
}

// ipOf is an address as C has it.
func ipOf(a netip.Addr) (ip [16]C.uint8_t) {
	for i, b := range a.As16() {
		ip[i] = C.uint8_t(b)
	}
	return ip
}

// deviceOf names the RDMA device that has an address of this machine. Implements rdma_bind_addr.
func (l *cmLibrary) deviceOf(a netip.Addr) (string, error) {
	var name [64]C.char // IBV_SYSFS_NAME_MAX
	var step *C.char
	ip := ipOf(a)
	if rc := C.vb_cm_device(l.c, &ip[0], &name[0], &step); rc != 0 {
		return "", fmt.Errorf("%s %s: %w", C.GoString(step), a, syscall.Errno(-rc))
	}
	return C.GoString(&name[0]), nil
}

// own is an address of an interface.
type own struct {
	addr   netip.Addr
	prefix netip.Prefix
	net    string
}

// better says whether iWARP should use a rather than b: IPv4 before IPv6, those of the link alone last.
func (a own) better(b own) bool {
	rank := func(o own) int {
		switch {
		case o.addr.IsLinkLocalUnicast():
			return 0
		case !o.addr.Is4():
			return 1
		}
		return 2
	}
	return rank(a) > rank(b)
}

// addresses asks which device has which address of this network namespace; of several the best. why says for which of
// them nobody knows: another reason before ENODEV, which those have that are of no RDMA device.
func (l *cmLibrary) addresses() (best map[string]own, why error) {
	best = map[string]own{}
	nets, err := net.Interfaces()
	if err != nil {
		return best, err
	}
	for _, n := range nets {
		for _, p := range prefixes(n.Name) {
			o := own{p.Addr(), p, n.Name}
			if o.addr.Is6() && o.addr.IsLinkLocalUnicast() {
				continue // means nothing without its interface
			}
			name, err := l.deviceOf(o.addr)
			if err != nil {
				if why == nil || errors.Is(why, syscall.ENODEV) {
					why = err
				}
				continue
			}
			if b, ok := best[name]; !ok || o.better(b) {
				best[name] = o
			}
		}
	}
	return best, why
}
