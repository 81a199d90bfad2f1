package shm

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/backend/provider/shm/cma"
	"gorail/backend/provider/shm/ipc"
)

// endpoint implements provider.Endpoint: a shared-memory segment with a ring for the peer's messages and in-use
// epochs for the peer's copies.
type endpoint struct {
	rail *rail
	core cma.Endpoint
	addr []byte
	peer ipc.Place // set by Connect

	mu     sync.Mutex
	hs     *ipc.Handshake
	closed bool
}

// OpenEndpoint implements provider.Rail and memfd_create. The error wraps provider.ErrEndpoint.
func (r *rail) OpenEndpoint() (provider.Endpoint, error) {
	segment, fd, err := ipc.Segment(cma.Sizes.Segment, false)
	if err != nil {
		return nil, r.error(provider.ErrEndpoint, "memfd_create", err)
	}
	ring, ringFD, err := ipc.Ring(r.ringSize)
	if err != nil {
		closeFDs(fd)
		_ = unix.MunmapPtr(segment, cma.Sizes.Segment)
		return nil, r.error(provider.ErrEndpoint, "memfd_create", err)
	}
	r.hadPeers.Store(true)
	c, err := r.core.OpenEndpoint(segment, ring, r.ringSize)
	if err != nil {
		closeFDs(fd, ringFD)
		_ = unix.MunmapPtr(segment, cma.Sizes.Segment)
		_ = unix.MunmapPtr(ring, uintptr(r.ringSize))
		return nil, r.error(provider.ErrEndpoint, "calloc", err)
	}
	e := &endpoint{rail: r, core: c}
	r.openEPs.Add(1)
	if e.hs, err = r.listener.Open(c, fd, r.tableFD, r.sharesFD, ringFD); err != nil {
		closeFDs(fd, ringFD)
		_ = c.Shut()
		c.Free()
		r.openEPs.Add(-1)
		return nil, r.error(provider.ErrEndpoint, "", err)
	}
	token := e.hs.Token()
	e.addr = append(r.listener.Place().Append([]byte{addressForm}), token[:]...)
	return e, nil
}

func (e *endpoint) Addr() []byte         { return e.addr }
func (e *endpoint) Core() unsafe.Pointer { return e.core.Core() }

// Connect starts the handshake with the peer's endpoint and does not wait for the peer. The peer gets our descriptors
// over a unix socket. The address and all that the peer shares are untrusted and checked. The kernel identifies the
// peer's process. The error wraps provider.ErrBadAddress. Implements connect and sendmsg of a unix socket.
func (e *endpoint) Connect(peer []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return fmt.Errorf("%w: %s: endpoint is closed", provider.ErrEndpoint, e.rail.dev.Name)
	}
	if len(peer) != addressLen || peer[0] != addressForm {
		return fmt.Errorf("%w: %s: malformed endpoint address of %d bytes", provider.ErrBadAddress, e.rail.dev.Name, len(peer)) // it has a token
	}
	place, ok := ipc.Decode(peer[1:])
	if !ok {
		return fmt.Errorf("%w: %s: endpoint address names no sockets: %x", provider.ErrBadAddress, e.rail.dev.Name, peer[1:1+ipc.PlaceSize])
	}
	if err := e.core.BeginConnect(); err != nil {
		return e.rail.error(provider.ErrBadAddress, "connect", err)
	}
	e.peer = place
	if err := e.hs.Connect(&e.peer, ipc.Token(peer[1+ipc.PlaceSize:])); err != nil {
		return e.rail.error(provider.ErrBadAddress, "", err)
	}
	return nil
}

// Close ends the peer's access and our own operations. Poll reports unfinished operations as ECANCELED. Close waits
// for our own copies, for those of GPUs 1 s at most. It waits 1 s at most for copies that the peer makes for us, and 1 s at most for the peer's own
// copies. The endpoint is closed in any case.
func (e *endpoint) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	e.hs.Close()
	err := e.core.Shut()
	e.rail.leave(e)
	if e.core.Imports() {
		// unmap first: the peer may free that memory as soon as it sees the close. It stays allocated while it is mapped
		e.rail.mapper.wait(taskPatience)
	}
	e.core.Free()
	e.rail.openEPs.Add(-1)
	if err == nil {
		return nil
	}
	failed := e.rail.error(provider.ErrEndpoint, "close", err)
	if errors.Is(err, unix.EINPROGRESS) {
		return &provider.GPUBusy{Err: failed, Over: e.rail.jobsEnded}
	}
	return failed
}

const (
	addressForm = 5 // first byte of an address; identifies the layout
	addressLen  = 1 + ipc.PlaceSize + ipc.TokenSize
)

// jobsEnded reports that GPUs have ended all copies of closed endpoints.
func (r *rail) jobsEnded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closed || r.core.JobsKept() == 0
}

// Forget implements provider.Host.
func (r *rail) Forget(of provider.Endpoint, region uint32) {
	e := of.(*endpoint)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed && e.core.Forget(region) {
		r.mapper.wait(taskPatience)
	}
}

// ForgetKey implements provider.Host.
func (r *rail) ForgetKey(of provider.Endpoint, key uint64) {
	e := of.(*endpoint)
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.core.ForgetView(key)
	}
}
