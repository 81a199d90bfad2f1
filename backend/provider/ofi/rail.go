package ofi

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
	"gorail/backend/provider/ofi/sockets"
)

// rail implements provider.Rail: one domain with its address vector and completion queue. Lock order: endpoint.mu or
// mu, scanner.mu, setup, the C rail's lock.
type rail struct {
	dev    provider.Device
	entry  *entry
	quirks quirks
	caps   caps
	notes  []string
	c      *libfabric.Rail // the core posts to it and polls it; has its own lock

	mu     sync.Mutex
	closed bool
	warned warned

	scanner  scanner
	sweeping atomic.Bool // a sweep is scheduled

	setup     sync.Mutex    // guards the following fields; hold takes it before the C rail's lock
	files     sockets.Files // the process's descriptors, for holders of the rail
	ports     ports
	peers     peers
	openEPs   int
	listening map[sockets.Name]*libfabric.Endpoint // endpoints with a filter
	noFilter  error                                // why a listening socket has no filter; nil: all have one
}

var _ provider.Warner = (*rail)(nil)

func (r *rail) Device() provider.Device { return r.dev }
func (r *rail) Caps() provider.Caps     { return r.caps.Caps }
func (r *rail) Notes() []string         { return r.notes }
func (r *rail) Core() unsafe.Pointer    { return r.c.Core() }

func (r *rail) lib() *libfabric.Library { return r.entry.Library() }

// options returns the settings for endpoints.
func (r *rail) options() libfabric.Options {
	return libfabric.Options{NoDetours: !r.quirks.perPeer, P2P: r.entry.HMEM}
}

// hold runs f with setup and the rail's lock (libfabric.Rail.Hold).
func (r *rail) hold(f func()) {
	r.setup.Lock()
	defer r.setup.Unlock()
	r.c.Hold(f)
}

func (r *rail) error(phase, err error) error {
	err = fmt.Errorf("%w: %s/%s: %w", phase, r.dev.Fabric, r.dev.Name, err)
	if sockets.Exhausted() { // libfabric sometimes reports that as EIO
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
		r.files.Close()
		r.scanner.files.Close()
		r.c.Free()
	}
	return err
}

// warned is the state of Warnings.
type warned struct {
	noFilter bool   // the missing filter was reported
	resets   uint64 // connections reset for lack of descriptors, as last reported
	resetAt  time.Time
}

const logEvery = time.Minute

// Warnings implements provider.Warner.
func (r *rail) Warnings() (warnings []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.setup.Lock()
	unfit := r.noFilter
	r.setup.Unlock()
	resets := r.c.ResetCount()
	if unfit != nil && !r.warned.noFilter {
		r.warned.noFilter = true
		warnings = append(warnings, fmt.Sprintf("listening sockets accept connections from any address, and libfabric's tcp trusts them: "+
			"no filter could be set (%v); block the ports of option data_port for other hosts with a firewall", unfit))
	}
	if resets > r.warned.resets && time.Since(r.warned.resetAt) > logEvery {
		warnings = append(warnings, fmt.Sprintf("%d connections of peers were reset: the process had no file descriptor left; raise the limit with ulimit -n",
			resets-r.warned.resets))
		r.warned.resets, r.warned.resetAt = resets, time.Now()
	}
	return warnings
}
