package ofi

import (
	"errors"
	"fmt"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/ofi/libfabric"
)

// Completions that may wait in the queue, over all peers. Hardware does not grow its queue, and an
// overrun is fatal there, so we request a large queue and accept a smaller one.
const cqMax, cqMin = 65536, 1024

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
