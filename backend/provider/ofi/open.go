package ofi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/ofi/sockets"
)

// Completions that may wait to be read, over all peers. The tcp family grows its queue by itself; hardware doesn't, and
// overrunning it is fatal there, so we ask for a lot and take what is given.
const cqMax, cqMin = 65536, 1024

// opened is what openRail opens, beside what the core uses.
type opened struct {
	av       *fiAV
	cqSize   uint32
	files    sockets.Files // of the process, for who holds the rail
	bound    *fiInfo       // a copy of the entry for endpoints of a port of our choice, or nil
	nextPort uint16        // of that choice
	noP2P    error         // the provider refused to let the device alone move memory of GPUs
}

// openRail implements fi_fabric, fi_domain, fi_av_open and fi_cq_open. The error wraps provider.ErrUnusable.
func openRail(d provider.Device, e *entry, q quirks, ports Ports, t Tuning) (*rail, error) {
	lib := e.handle.lib
	if err := t.check(e, q); err != nil {
		return nil, err
	}
	r := &rail{dev: d, entry: e, quirks: q, ports: ports, c: newCoreRail(), peers: make(map[string]*peer), listening: make(map[sockets.Name]*endpoint)}
	r.look.over.L = &r.look.mu
	r.look.files, r.files = sockets.NoFiles, sockets.NoFiles
	if r.c == nil {
		return nil, r.error(provider.ErrUnusable, lib.errno("calloc", syscall.ENOMEM))
	}
	if err := r.open(uint32(t.CQDepth)); err != nil {
		_ = r.closeObjects()
		r.free()
		return nil, fmt.Errorf("%w: %s/%s: %w%s; take another with option devices or provider (%s)", provider.ErrUnusable,
			d.Fabric, d.Name, err, t.blame(e, clib.As(err).Call), lib.Describe())
	}
	r.fillCaps()
	r.notes = append(t.notes(e, lib.version), r.emulation()...)
	return r, nil
}

// open opens one after the other; what was opened stays when one fails. cqDepth 0: as deep as the provider makes it. The error is a *clib.CallError.
func (r *rail) open(cqDepth uint32) (err error) {
	lib, info := r.lib(), r.entry.info
	if r.quirks.perPeer {
		if fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			r.c.reserve = cInt(fd)
		}
		if err := r.choosePorts(); err != nil {
			return err
		}
	}
	if r.c.fabric, err = lib.openFabric(info); err != nil {
		return err
	}
	if r.c.domain, err = lib.openDomain(r.c.fabric, info); err != nil {
		return err
	}
	if r.av, err = lib.openAV(r.c.domain); err != nil {
		return err
	}
	if err = r.openCQ(cqDepth); err != nil {
		return err
	}
	if r.quirks.noTrywait {
		r.c.no_trywait = 1
		r.findSignal()
	}
	if r.quirks.perPeer {
		return r.openFolders()
	}
	ep, err := r.makeEP()
	if err == nil {
		share(r.c, ep)
	}
	return err
}

// openCQ asks for a shorter queue, or one without a descriptor to wait for, until there is one. asked is the operator's, that or none; or 0.
func (r *rail) openCQ(asked uint32) (err error) {
	most, least := uint32(cqMax), uint32(cqMin)
	if r.quirks.perPeer {
		most = cqMax / 4
	}
	if asked != 0 {
		most, least = asked, asked
	}
	for _, wait := range []fiWait{fiWaitFD, fiWaitNone} {
		for size := most; size >= least; size /= 2 {
			if r.c.cq, err = r.lib().openCQ(r.c.domain, size, wait); err == nil {
				if wait == fiWaitFD {
					r.c.base.wait_fd = cInt(waitFD(r.c.cq))
				}
				r.cqSize = size
				return nil
			}
			r.c.cq = nil
			if errors.Is(err, syscall.EMFILE) {
				return err // a queue without a wait object would be no cure
			}
			if errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EOPNOTSUPP) {
				break // the wait object, not the size
			}
		}
	}
	return err
}

// hmem says that the device was opened with FI_HMEM.
func (r *rail) hmem() bool { return r.entry.info.caps&fiHMEM != 0 }

// findSignal raises the queue's signal to see how it shows in the wait descriptor. Where it doesn't, the rail is polled by timer.
func (r *rail) findSignal() {
	var events [4]unix.EpollEvent
	if fd := int(r.c.base.wait_fd); fd >= 0 && raise(r.c.cq) {
		if n, err := unix.EpollWait(fd, events[:], 0); err == nil && n == 1 {
			tag := (*[8]byte)(unsafe.Pointer(&events[0].Fd)) // epoll_data, of which x/sys makes two
			r.c.signal_tag = cUint64(binary.NativeEndian.Uint64(tag[:]))
			return
		}
	}
	r.c.base.wait_fd = -1
}

func (r *rail) openFolders() (err error) {
	if r.files, err = sockets.OpenFiles(); err == nil {
		r.look.files, err = sockets.OpenFiles()
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return r.lib().errno("opendir of /proc/self/fd", errno)
	}
	return nil
}

// closeObjects closes in the reverse order of opening; a queue closes only when nothing is bound to it. The first error.
func (r *rail) closeObjects() (first error) {
	r.files.Close()
	r.look.files.Close()
	var order []*fiFid
	if r.c.shared != nil {
		order = append(order, &r.c.shared.fid)
	}
	if r.c.cq != nil {
		order = append(order, &r.c.cq.fid)
	}
	if r.av != nil {
		order = append(order, &r.av.fid)
	}
	if r.c.domain != nil {
		order = append(order, &r.c.domain.fid)
	}
	if r.c.fabric != nil {
		order = append(order, &r.c.fabric.fid)
	}
	for _, fid := range order {
		if err := r.lib().close(fid); first == nil {
			first = err
		}
	}
	return first
}

// free gives back what is not libfabric's objects.
func (r *rail) free() {
	r.lib().freeinfo(r.bound)
	freeCoreRail(r.c)
}
