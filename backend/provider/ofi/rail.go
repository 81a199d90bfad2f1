package ofi

import (
	"fmt"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
)

// rail implements provider.Rail: one domain with its address vector and completion queue. Lock order: endpoint.mu or
// mu, setup, the C rail's lock.
type rail struct {
	dev   provider.Device
	entry *entry
	caps  caps
	notes []string
	c     *libfabric.Rail // the core posts to it and polls it; has its own lock

	mu     sync.Mutex
	closed bool

	setup   sync.Mutex // guards the following fields; hold takes it before the C rail's lock
	peers   peers
	openEPs int
}

func (r *rail) Device() provider.Device { return r.dev }
func (r *rail) Caps() provider.Caps     { return r.caps.Caps }
func (r *rail) Notes() []string         { return r.notes }
func (r *rail) Core() unsafe.Pointer    { return r.c.Core() }

func (r *rail) lib() *libfabric.Library { return r.entry.Library() }

// options returns the settings for endpoints.
func (r *rail) options() libfabric.Options {
	return libfabric.Options{NoDetours: true, P2P: r.entry.HMEM}
}

// hold runs f with setup and the rail's lock (libfabric.Rail.Hold).
func (r *rail) hold(f func()) {
	r.setup.Lock()
	defer r.setup.Unlock()
	r.c.Hold(f)
}

func (r *rail) error(phase, err error) error {
	err = fmt.Errorf("%w: %s/%s: %w", phase, r.dev.Fabric, r.dev.Name, err)
	if exhausted() { // libfabric sometimes reports that as EIO
		err = fmt.Errorf("%w: %w", err, syscall.EMFILE)
	}
	return err
}

// Close implements fi_close of queue, address vector, domain and fabric. While endpoints or regions are open, Close
// fails with EBUSY and changes nothing. A second Close does nothing.
func (r *rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if err := r.end(); err != nil {
		return r.error(provider.ErrUnusable, err)
	}
	return nil
}

// end closes all objects, unless endpoints or regions are open. Under mu, or before the rail is in use.
func (r *rail) end() (err error) {
	r.setup.Lock()
	defer r.setup.Unlock()
	if r.closed, err = r.c.Close(r.openEPs); r.closed {
		r.c.Free()
	}
	return err
}

// exhausted reports whether the process has used all its descriptors.
func exhausted() bool {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return err == unix.EMFILE
}
