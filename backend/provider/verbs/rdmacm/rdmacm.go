// Package rdmacm makes connections with librdmacm. The library is loaded at run time, never linked.
//
// A Listener is one device's address and event channel. It has no lock: the caller makes calls with a Listener or an ID
// one at a time. Connect is the exception: it may block as long as TCP does (siw connects in the caller's thread).
// Errors are *clib.CallError.
package rdmacm

import (
	"net/netip"
	"syscall"

	"gorail/backend/provider/internal/clib"
)

// Library is a loaded librdmacm. Its methods are safe for concurrent use.
type Library struct{ c calls }

var loaded clib.Cache[*Library]

// Load loads a library once for each path. Implements dlopen.
func Load(path string) (*Library, error) {
	return loaded.Get(path, func(path string) (*Library, error) {
		c, err := loadCalls(path)
		return &Library{c}, err
	})
}

// bound returns an id that is bound to a local address, and so to a device.
func (l *Library) bound(ch *channel, a netip.AddrPort) (ID, error) {
	id, err := l.c.createID(ch)
	if err != nil {
		return nil, err
	}
	if err := l.c.bindAddr(id, a); err != nil {
		l.c.destroyID(id)
		return nil, err
	}
	return id, nil
}

// DeviceOf returns the name of the RDMA device with a local address; ENODEV: none. Implements rdma_bind_addr.
func (l *Library) DeviceOf(a netip.Addr) (string, error) {
	ch, err := l.c.createEventChannel()
	if err != nil {
		return "", err
	}
	defer l.c.destroyEventChannel(ch)
	id, err := l.bound(ch, netip.AddrPortFrom(a, 0))
	if err != nil {
		return "", err
	}
	defer l.c.destroyID(id)
	name := deviceOf(id)
	if name == "" {
		return "", clib.Failed("rdma_bind_addr", syscall.ENODEV)
	}
	return name, nil
}
