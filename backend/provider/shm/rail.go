package shm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/backend/provider/shm/descriptors"
	"gorail/backend/provider/shm/handshake"
	"gorail/backend/provider/shm/ipc"
	"gorail/backend/provider/vram"
)

// rail implements provider.Rail and provider.Prover: this process's table of regions and its threads.
type rail struct {
	dev    provider.Device
	core   core
	door   *handshake.Listener
	mapper *mapper
	gpus   *vram.GPUs

	table             *table
	tableFD, sharesFD int // of what peers read

	eps atomic.Int64 // that are open

	mu     sync.Mutex
	closed bool
	server *descriptors.Server // of VMM memory; nil before the first region that wants it
	known  map[int]bool        // GPUs that were looked at
	news   []string
}

var (
	_ provider.Prover = (*rail)(nil)
	_ provider.VRAM   = (*rail)(nil)
	_ provider.Teller = (*rail)(nil)
	_ provider.Helper = (*rail)(nil)
)

func (r *rail) Device() provider.Device { return r.dev }
func (r *rail) Core() unsafe.Pointer    { return unsafe.Pointer(r.core.c) }
func (r *rail) Notes() []string         { return nil }
func (r *rail) Caps() provider.Caps     { return r.core.caps() }

// openRail makes what peers read, what the core waits on and the core. The error says what failed.
func openRail(d provider.Device, o Options) (*rail, error) {
	r := &rail{dev: d, tableFD: -1, sharesFD: -1}
	p := parts{wait: -1, bell: -1, mapper: -1}
	err := r.open(o, &p)
	if err == nil {
		return r, nil
	}
	if r.door != nil {
		r.door.Close()
	}
	r.closeShared()
	closeFDs(p.wait, p.bell, p.mapper)
	if p.table != nil {
		_ = unix.MunmapPtr(p.table, sizes.Table)
	}
	if p.shares != nil {
		_ = unix.MunmapPtr(p.shares, sizes.Shares)
	}
	return nil, err
}

func (r *rail) open(o Options, p *parts) (err error) {
	if p.table, r.tableFD, err = ipc.Segment(sizes.Table, true); err != nil {
		return ipc.Fail("memfd_create", err)
	}
	if p.shares, r.sharesFD, err = ipc.Segment(sizes.Shares, true); err != nil {
		return ipc.Fail("memfd_create", err)
	}
	if p.wait, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return ipc.Fail("epoll_create", err)
	}
	if p.bell, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return ipc.Fail("eventfd", err)
	}
	if p.mapper, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return ipc.Fail("eventfd", err)
	}
	if err = unix.EpollCtl(p.wait, unix.EPOLL_CTL_ADD, p.bell, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil { // no data: that is the bell
		return ipc.Fail("epoll_ctl", err)
	}
	if r.door, err = handshake.Listen(sizes); err != nil {
		return err
	}
	if r.core, err = openCore(o, runtime.GOMAXPROCS(0), near(o.Threads), *p); err != nil {
		return ipc.Fail("calloc", err)
	}
	r.table = newTable(p.table, p.shares)
	r.mapper = newMapper(r.core, p.mapper)
	r.gpus = vram.New(o.CUDA, maxGPUs)
	_, _ = rand.Read(r.core.proof())
	return nil
}

// closeShared closes what peers have mapped: they keep it.
func (r *rail) closeShared() { closeFDs(r.tableFD, r.sharesFD) }

func closeFDs(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// error says what failed; what is "" for an *ipc.Error, which does.
func (r *rail) error(phase error, what string, err error) error {
	hint := ""
	switch errno := ipc.Errno(err); errno {
	case unix.EMFILE:
		hint = " (each peer takes 4 file descriptors: ulimit -n)"
	case unix.ENOSPC:
		hint = fmt.Sprintf(" (%d regions at most)", maxRegions)
	case unix.EACCES, unix.EOVERFLOW, unix.ENOTSUP, unix.EXDEV:
		hint = why(errno)
	case unix.ETIMEDOUT:
		hint = late(r.core.late())
	}
	if what != "" {
		what += ": "
	}
	return fmt.Errorf("%w: %s: %s%w%s", phase, r.dev.Name, what, err, hint)
}

// proofLen is that of the name of our socket, of an address, and of the bytes there.
const proofLen = nameLen + 8 + ipc.TokenSize

// Proof implements provider.Prover.
func (r *rail) Proof() []byte {
	bytes := r.core.proof()
	b := appendName(nil, r.door.Name())
	b = binary.BigEndian.AppendUint64(b, uint64(uintptr(unsafe.Pointer(&bytes[0]))))
	return append(b, bytes...)
}

// Reach implements provider.Prover: the kernel says which process listens at the socket that the proof names, and process_vm_readv of a few
// bytes shows that we may read it. The error says what forbids it and what would help.
func (r *rail) Reach(proof []byte) error {
	if len(proof) != proofLen {
		return fmt.Errorf("%w: a proof of %d bytes", provider.ErrBadAddress, len(proof))
	}
	name, ok := readName(proof)
	if !ok {
		return fmt.Errorf("%w: a proof that names no socket: %x", provider.ErrBadAddress, proof[:nameLen])
	}
	p := ipc.Proof{Name: name, At: binary.BigEndian.Uint64(proof[nameLen:]), Bytes: [ipc.TokenSize]byte(proof[nameLen+8:])}
	pid, err := p.Reach()
	if err == nil {
		return nil
	}
	var e *ipc.Error
	_ = errors.As(err, &e)
	what := e.Step
	if pid != 0 {
		what = fmt.Sprintf("%s, process %d", what, pid)
	}
	return fmt.Errorf("%s: %w%s", what, e.Errno, why(e.Errno))
}

// Register enters the range in the table; nothing is pinned, the memory need not be mapped yet. key is ignored. Implements no call.
func (r *rail) Register(addr, length, _ uint64) (provider.MR, error) {
	if length == 0 || addr+length < addr {
		return nil, fmt.Errorf("%w: %s: range %#x + %d", provider.ErrRegister, r.dev.Name, addr, length)
	}
	key, err := r.table.put(addr, length, nil, nil)
	if err != nil {
		return nil, r.error(provider.ErrRegister, "register", err)
	}
	return &region{rail: r, key: key, base: addr}, nil
}

// Close ends the threads. With endpoints or regions open it fails with EBUSY and changes nothing; a second Close does nothing.
func (r *rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if r.table.busy() || r.eps.Load() > 0 {
		return r.error(provider.ErrUnusable, "close", unix.EBUSY)
	}
	r.closed = true
	if r.server != nil {
		r.server.Close()
	}
	r.door.Close()
	r.closeShared()
	r.mapper.close()
	if err := r.core.close(); err != nil {
		return r.error(provider.ErrUnusable, "close", err)
	}
	return r.gpus.Close()
}

// region implements provider.MR: an entry of the table.
type region struct {
	rail      *rail
	key, base uint64
	desc      unsafe.Pointer // of memory of a GPU; C's, freed by Close
	mem       vram.Memory

	mu     sync.Mutex
	closed bool
}

func (m *region) Key() uint64          { return m.key }
func (m *region) Base() uint64         { return m.base }
func (m *region) Desc() unsafe.Pointer { return m.desc }

// Close takes the entry out and waits until nobody copies to or from the range any more, a second at most: the error then names
// the process that is in the middle of a copy. The region is closed in any case.
func (m *region) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	defer freeDesc(m.desc)
	m.rail.table.revoke(m.key) // before any lane is looked at
	err := m.rail.core.quiet(m.key)
	m.rail.table.release(m.key)
	if err != nil {
		return m.rail.error(provider.ErrRegister, "deregister", err)
	}
	return nil
}

// Helped implements provider.Helper.
func (r *rail) Helped() (forPeers, byPeers uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, 0
	}
	return r.core.helped()
}
