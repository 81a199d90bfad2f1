package ofi

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"syscall"
	"unsafe"

	"gorail/backend/host"
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

// openRail opens the device's domain, address vector and completion queue. The error wraps provider.ErrUnusable.
func openRail(d provider.Device, e *entry, t Tuning) (*rail, error) {
	lib := e.Library()
	r := &rail{dev: d, entry: e}
	c, err := libfabric.NewRail(e.Info)
	if err != nil {
		return nil, r.error(provider.ErrUnusable, err)
	}
	r.c, r.peers = c, peers{c, make(map[string]*peer)}
	cq, err := r.open()
	if err != nil {
		_ = r.end()
		return nil, fmt.Errorf("%w: %s/%s: %w%s; take another with option devices or provider (%s)", provider.ErrUnusable,
			d.Fabric, d.Name, err, t.suspectOptions(e), lib.Describe())
	}
	r.caps = newCaps(c, e, d.Hardware, cq)
	c.SetFacts(r.caps.facts())
	r.notes = append(t.notes(e, lib.Version()), emulation(c)...)
	return r, nil
}

func (r *rail) Device() provider.Device { return r.dev }
func (r *rail) Caps() provider.Caps     { return r.caps.Caps }
func (r *rail) Notes() []string         { return r.notes }
func (r *rail) Core() unsafe.Pointer    { return r.c.Core() }

func (r *rail) error(phase, err error) error {
	err = fmt.Errorf("%w: %s/%s: %w", phase, r.dev.Fabric, r.dev.Name, err)
	if host.NoDescriptorLeft() { // libfabric sometimes reports that as EIO
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

// end closes all objects, unless endpoints or regions are open. Under mu, or before the rail is in use.
func (r *rail) end() (err error) {
	r.setup.Lock()
	defer r.setup.Unlock()
	if r.closed, err = r.c.Close(r.openEPs); r.closed {
		r.c.Free()
	}
	return err
}

// Completions that may wait in the queue, over all peers. Hardware does not grow its queue, and an
// overrun is fatal there, so we request a large queue and accept a smaller one.
const cqMax, cqMin = 65536, 1024

// open opens the objects in order. After a failure, opened objects stay open. cq is the size of the completion queue.
// The error is a *clib.CallError.
func (r *rail) open() (cq uint32, err error) {
	if err = r.c.OpenDomain(); err != nil {
		return 0, err
	}
	if cq, err = openCQ(r.c); err != nil {
		return 0, err
	}
	return cq, r.c.Share(r.options())
}

// openCQ tries ever shorter queues, then queues without a wait descriptor. size is the size of the opened queue.
func openCQ(c *libfabric.Rail) (size uint32, err error) {
	for _, wait := range []bool{true, false} {
		for size = cqMax; size >= cqMin; size /= 2 {
			if err = c.OpenCQ(size, wait); err == nil {
				return size, nil
			}
			if errors.Is(err, syscall.EMFILE) {
				return 0, err // a queue without a wait object would not help
			}
			if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EOPNOTSUPP) {
				break // the wait object is refused, not the size
			}
		}
	}
	return 0, err
}

// caps are the properties of an opened device, for the engine and for the core.
type caps struct {
	provider.Caps
	Ordered          bool // the receive of a SEND proves earlier WRITEs of the same endpoint
	DeliveryComplete bool // a completion proves placement at the target
	VirtAddr         bool // remote addresses are virtual addresses; else offsets from the region's start
	LocalDesc        bool // local buffers need registration descriptors
	EndpointMR       bool // regions are bound to endpoints
	IOVLimit         int
	TxDepth, RxDepth int
	MaxSend          uint64
}

// newCaps returns the properties of an open rail. pins: registration pins memory. cq is the size of the completion
// queue.
func newCaps(c *libfabric.Rail, e *entry, pins bool, cq uint32) caps {
	out := caps{
		Ordered:          e.SendAfterWrite,
		DeliveryComplete: e.DeliveryComplete,
		VirtAddr:         e.VirtAddr,
		Caps: provider.Caps{ProviderKeys: e.ProviderKeys, KeySize: int(e.KeySize), PinsMemory: pins, SharedEndpoint: c.Shared(),
			// Messages may be smaller than RMA (efa-direct: MTU and 1 GB). libfabric 2.x reports each size on request.
			MaxMsg: limit(c, libfabric.OptMaxRMA, e.MaxMsg)},
		LocalDesc:  e.LocalDesc,
		EndpointMR: e.EndpointMR,
		IOVLimit:   int(min(max(e.Segments, 1), libfabric.MaxSegments)),
		TxDepth:    int(min(e.TxDepth, uint64(cq))),
		RxDepth:    int(min(e.RxDepth, uint64(cq))),
		MaxSend:    limit(c, libfabric.OptMaxMsg, e.MaxMsg),
	}
	if out.KeySize == 0 {
		out.KeySize = 8
	}
	return out
}

// facts returns the properties for the core.
func (c caps) facts() libfabric.Facts {
	return libfabric.Facts{DeliveryComplete: c.DeliveryComplete, Ordered: c.Ordered, ProviderKeys: c.ProviderKeys,
		LocalDesc: c.LocalDesc, EndpointMR: c.EndpointMR, KeySize: c.KeySize, Segments: c.IOVLimit,
		TxDepth: c.TxDepth, RxDepth: c.RxDepth, MaxMsg: c.MaxMsg, MaxSend: uint32(min(c.MaxSend, math.MaxUint32))}
}

// limit returns the shared endpoint's value of the option, or the entry's value. "No limit" is all ones, so the result
// is capped at 63 bits for calculations.
func limit(c *libfabric.Rail, option int, entry uint64) uint64 {
	entry = min(entry, math.MaxInt64)
	if v := c.Size(option); v != 0 {
		return min(v, entry)
	}
	return entry
}

// emulation returns a note if libfabric emulates RMA with messages. EFA's fabric `efa` does that if the device has no
// RMA, or if the environment forbids device RDMA.
func emulation(c *libfabric.Rail) []string {
	what := map[[2]bool]string{{true, false}: "READ is", {false, true}: "WRITE is", {true, true}: "READ and WRITE are"}
	if s, ok := what[[2]bool{c.Bool(libfabric.OptEmulatedRead), c.Bool(libfabric.OptEmulatedWrite)}]; ok {
		return []string{s + " emulated by libfabric with messages and copies: the device or its driver has no RDMA for it, or FI_EFA_USE_DEVICE_RDMA=0 is set"}
	}
	return nil
}
