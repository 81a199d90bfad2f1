package ofi

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/sockets"
)

// rail implements provider.Rail: one domain with its address vector and completion queue. Locks, in their order: endpoint.mu or mu,
// lookout.mu, setup, the C rail's.
type rail struct {
	dev    provider.Device
	entry  *entry // keeps the fi_info that libfabric's objects were made of
	quirks quirks
	ports  Ports
	caps   caps
	notes  []string
	c      *coreRail // what the core posts to and polls; its lock guards it

	mu     sync.Mutex
	closed bool
	news   news

	look     lookout
	sweeping atomic.Bool // a sweep is due

	setup sync.Mutex // hold takes it, for what follows and round the C rail's lock
	opened
	openEPs   int
	peers     map[string]*peer
	listening map[sockets.Name]*endpoint // those with a filter
	noDoor    error                      // why a listening socket has none; nil: all have
}

func (r *rail) Device() provider.Device { return r.dev }
func (r *rail) Caps() provider.Caps     { return r.caps.Caps }
func (r *rail) Notes() []string         { return r.notes }
func (r *rail) Core() unsafe.Pointer    { return unsafe.Pointer(r.c) }

func (r *rail) lib() *library { return r.entry.handle.lib }

func (r *rail) error(phase, err error) error {
	err = fmt.Errorf("%w: %s/%s: %w", phase, r.dev.Fabric, r.dev.Name, err)
	if sockets.Exhausted() { // libfabric reports that as EIO at times
		err = fmt.Errorf("%w: %w", err, syscall.EMFILE)
	}
	return err
}

// Close implements fi_close of queue, address vector, domain and fabric. With endpoints or regions open it fails with
// EBUSY and changes nothing; a second Close does nothing.
func (r *rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	var err error
	r.hold(func() {
		if mrs := int(r.c.open_mrs); r.openEPs != 0 || mrs != 0 {
			err = r.lib().errno(fmt.Sprintf("close with %d endpoints and %d regions open", r.openEPs, mrs), syscall.EBUSY)
			return
		}
		r.closed = true
		err = r.closeObjects()
	})
	if r.closed {
		r.free()
	}
	if err != nil {
		return r.error(provider.ErrUnusable, err)
	}
	return nil
}
