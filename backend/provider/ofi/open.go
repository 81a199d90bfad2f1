package ofi

import (
	"errors"
	"fmt"
	"syscall"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/ofi/libfabric"
	"gorail/backend/provider/ofi/sockets"
)

// Completions that may wait in the queue, over all peers. The tcp family grows its queue. Hardware does not, and an
// overrun is fatal there, so we request a large queue and accept a smaller one.
const cqMax, cqMin = 65536, 1024

// openRail opens the device's domain, address vector and completion queue. The error wraps provider.ErrUnusable.
func openRail(d provider.Device, e *entry, p Ports, t Tuning) (*rail, error) {
	lib, q := e.Library(), quirksOf(e)
	if err := t.check(e, q); err != nil {
		return nil, err
	}
	r := &rail{dev: d, entry: e, quirks: q, listening: make(map[sockets.Name]*libfabric.Endpoint)}
	r.scanner.over.L = &r.scanner.mu
	r.scanner.files, r.files = sockets.NoFiles, sockets.NoFiles
	c, err := libfabric.NewRail(e.Info)
	if err != nil {
		return nil, r.error(provider.ErrUnusable, err)
	}
	r.c, r.peers = c, peers{c, make(map[string]*peer)}
	cq, err := r.open(p, uint32(t.CQDepth))
	if err != nil {
		_ = r.end()
		return nil, fmt.Errorf("%w: %s/%s: %w%s; take another with option devices or provider (%s)", provider.ErrUnusable,
			d.Fabric, d.Name, err, t.suspectOptions(e, clib.As(err).Call), lib.Describe())
	}
	r.caps = newCaps(c, e, q, d.Hardware, cq)
	c.SetFacts(r.caps.facts(q.perPeer))
	r.notes = append(t.notes(e, lib.Version()), emulation(c)...)
	return r, nil
}

// open opens the objects in order. After a failure, opened objects stay open. cqDepth is the requested queue size, 0:
// the default; cq is the size in use. The error is a *clib.CallError.
func (r *rail) open(p Ports, cqDepth uint32) (cq uint32, err error) {
	if r.quirks.perPeer {
		r.c.Reserve()
		if r.ports, err = choosePorts(p, r.entry.Info); err != nil {
			return 0, err
		}
	}
	if err = r.c.OpenDomain(); err != nil {
		return 0, err
	}
	if cq, err = openCQ(r.c, r.quirks, cqDepth); err != nil {
		return 0, err
	}
	if r.quirks.noTrywait {
		r.c.NoTrywait()
	}
	if r.quirks.perPeer {
		return cq, r.openFiles()
	}
	return cq, r.c.Share(r.options())
}

// openCQ tries ever shorter queues, then queues without a wait descriptor. size is the size of the opened queue. asked
// is the operator's size, which is not reduced, or 0.
func openCQ(c *libfabric.Rail, q quirks, asked uint32) (size uint32, err error) {
	most, least := uint32(cqMax), uint32(cqMin)
	if q.perPeer {
		most = cqMax / 4
	}
	if asked != 0 {
		most, least = asked, asked
	}
	for _, wait := range []bool{true, false} {
		for size = most; size >= least; size /= 2 {
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

func (r *rail) openFiles() (err error) {
	if r.files, err = sockets.OpenFiles(); err == nil {
		r.scanner.files, err = sockets.OpenFiles()
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return r.lib().Errno("opendir of /proc/self/fd", errno)
	}
	return nil
}
