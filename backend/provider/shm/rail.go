package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/access"
	"gorail/backend/failpoint"
	"gorail/backend/host"
	"gorail/backend/limits"
	"gorail/backend/provider"
	"gorail/backend/provider/shm/cma"
	"gorail/backend/provider/shm/descriptors"
	"gorail/backend/provider/shm/handshake"
	"gorail/backend/provider/shm/ipc"
	"gorail/backend/provider/vram"
)

// rail implements provider.Rail and provider.Host: this process's table of regions, and the threads that copy.
type rail struct {
	dev      provider.Device
	core     cma.Rail
	host     *ipc.Host
	noFolder error // why host has no folder; nil: it has one, or none was asked for
	listener *handshake.Listener
	stale    stale
	mapper   *mapper
	gpus     *vram.GPUs
	ringSize uint64 // bytes of an endpoint's ring

	table             *table
	tableFD, sharesFD int // of the segments that peers read

	openEPs atomic.Int64 // open endpoints

	mu        sync.Mutex
	closed    bool
	server    *descriptors.Server // descriptor server of VMM memory; nil before the first region that needs it
	notedGPUs map[int]bool        // GPUs that noteGPU has seen
	reports   []string
	warnings  warnings
	notes     []string // written by openFolder alone
}

var (
	_ provider.Host    = (*rail)(nil)
	_ provider.VRAM    = (*rail)(nil)
	_ provider.Warner  = (*rail)(nil)
	_ provider.Limiter = (*rail)(nil)
	_ provider.Later   = (*rail)(nil)
)

func (r *rail) Device() provider.Device { return r.dev }
func (r *rail) Core() unsafe.Pointer    { return r.core.Core() }
func (r *rail) Notes() []string         { return r.notes }
func (r *rail) Caps() provider.Caps     { return r.core.Caps() }

// openRail makes the segments that peers read, the descriptors that the core waits on, and the core. The error says
// what failed.
func openRail(d provider.Device, o Options) (*rail, error) {
	r := &rail{dev: d, ringSize: o.ring(), tableFD: -1, sharesFD: -1}
	p := cma.Parts{Wait: -1, Doorbell: -1, Mapper: -1}
	err := r.open(o, &p)
	if err == nil {
		return r, nil
	}
	if r.listener != nil {
		r.listener.Close()
	}
	r.closeFolder()
	r.closeShared()
	closeFDs(p.Wait, p.Doorbell, p.Mapper)
	if p.Table != nil {
		_ = unix.MunmapPtr(p.Table, cma.Sizes.Table)
	}
	if p.Shares != nil {
		_ = unix.MunmapPtr(p.Shares, cma.Sizes.Shares)
	}
	return nil, err
}

func (r *rail) open(o Options, p *cma.Parts) (err error) {
	if p.Table, r.tableFD, err = ipc.Segment(cma.Sizes.Table, true); err != nil {
		return ipc.Fail("memfd_create", err)
	}
	if p.Shares, r.sharesFD, err = ipc.Segment(cma.Sizes.Shares, true); err != nil {
		return ipc.Fail("memfd_create", err)
	}
	if err = failpoint.Fail("shm_epoll"); err == nil {
		p.Wait, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	}
	if err != nil {
		return ipc.Fail("epoll_create", err)
	}
	if p.Doorbell, err = eventfd(); err != nil {
		return ipc.Fail("eventfd", err)
	}
	if p.Mapper, err = eventfd(); err != nil {
		return ipc.Fail("eventfd", err)
	}
	// no data: cma_rail.doorbell_fd
	if err = unix.EpollCtl(p.Wait, unix.EPOLL_CTL_ADD, p.Doorbell, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		return ipc.Fail("epoll_ctl", err)
	}
	r.openFolder(o)
	sizes := cma.Sizes
	sizes.Rings = o.Rings
	if r.listener, err = handshake.Listen(sizes, r.host); err != nil {
		return err
	}
	r.noteFolder(o)
	copying := cma.Options{Threads: o.Threads, Copies: o.Copies, NoAssist: o.NoAssist, CPUs: host.Quota(), Host: r.host, Binds: localBinds(o.Threads)}
	if r.core, err = cma.Open(copying, *p); err != nil {
		return ipc.Fail("calloc", err)
	}
	r.table = newTable(p.Table, p.Shares, r.core.Rights())
	r.mapper = newMapper(r.core, p.Mapper, r.warn)
	r.table.watches.first = r.mapper.noteChanged // looks begin
	r.gpus = vram.New(o.CUDA, cma.MaxGPUs)
	_, _ = rand.Read(r.core.Proof())
	return nil
}

func eventfd() (int, error) {
	if err := failpoint.Fail("shm_eventfd"); err != nil {
		return -1, err
	}
	return unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
}

// closeShared closes our descriptors of the shared segments. Peers keep their mappings.
func (r *rail) closeShared() { closeFDs(r.tableFD, r.sharesFD) }

func closeFDs(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// error adds device and hint to an error. what names the failed step; "" for an *ipc.Error, which has one.
func (r *rail) error(phase error, what string, err error) error {
	hint := ""
	var e *ipc.Error
	advised := errors.As(err, &e) && e.Advice != "" // in the error's text
	switch errno := ipc.Errno(err); errno {
	case unix.EMFILE:
		hint = " (each peer takes 3 file descriptors: raise ulimit -n)"
	case unix.ENOSPC:
		hint = fmt.Sprintf(" (at most %d regions)", cma.MaxRegions)
	case unix.EACCES, unix.EOVERFLOW:
		if !advised {
			hint = accessHint(errno)
		}
	case unix.ETIMEDOUT:
		hint = lateCopy(r.core.Late())
	case unix.EINPROGRESS:
		hint = fmt.Sprintf(" (GPU %d has not ended a copy within a second: its memory may still be read and written)", r.core.LateGPU())
	}
	if what != "" {
		what += ": "
	}
	return fmt.Errorf("%w: %s: %s%w%s", phase, r.dev.Name, what, err, hint)
}

// Register enters the range in the table. Nothing is pinned, and the memory may be mapped later. key is ignored. The
// access of peers holds for copies that we make for them through a ring. Peers that copy by themselves have engines that refuse what is not
// allowed. Peers may map memory that is a file in memory, if they may READ it.
func (r *rail) Register(addr, length, _ uint64, peers access.Rights) (provider.MR, error) {
	if length == 0 || addr+length < addr {
		return nil, fmt.Errorf("%w: %s: range %#x + %d is empty or wraps", provider.ErrRegister, r.dev.Name, addr, length)
	}
	w := r.find(addr, length, peers)
	key, err := r.table.put(addr, length, peers, nil, nil, w, nil)
	if err != nil {
		if w != nil && w.file != nil {
			w.file.Close()
		}
		return nil, r.error(provider.ErrRegister, "register", err)
	}
	return &region{rail: r, key: key, base: addr}, nil
}

// Later implements provider.Later. The file of shared memory is looked for at once: later it may have neither descriptor nor path.
func (r *rail) Later(addr, length uint64) bool { return r.table.files.Private(addr, length) }

// Close ends the threads. It fails with EBUSY and changes nothing while endpoints or regions are open. A second Close
// does nothing.
func (r *rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if r.table.busy() || r.openEPs.Load() > 0 {
		return r.error(provider.ErrUnusable, "close", unix.EBUSY)
	}
	r.closed = true
	if r.server != nil {
		r.server.Close()
	}
	r.listener.Close()
	r.stale.close()
	r.closeShared()
	r.table.files.Close()
	r.mapper.close()
	r.closeFolder()
	if err := r.core.Close(); err != nil {
		return r.error(provider.ErrUnusable, "close", err)
	}
	return r.gpus.Close()
}

// region implements provider.MR: an entry of the table.
type region struct {
	rail      *rail
	key, base uint64
	desc      unsafe.Pointer // of GPU memory; allocated by C, freed by Close
	mem       vram.Memory

	mu     sync.Mutex
	closed bool
}

func (m *region) Key() uint64          { return m.key }
func (m *region) Base() uint64         { return m.base }
func (m *region) Desc() unsafe.Pointer { return m.desc }

// Close revokes the region's key and waits, 1 s at most, until no copy to or from the region is under way. After a
// timeout the error names the process whose copy is unfinished. The region is closed in any case.
func (m *region) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	m.rail.table.revoke(m.key) // before WaitIdle reads the epochs
	err := m.rail.core.WaitIdle(m.key)
	if m.desc != nil {
		m.rail.core.Know(uint32(m.key), nil)
	}
	if m.desc != nil && err == nil { // else an answer to a peer may still read it
		m.rail.core.RetireDesc(m.desc)
	}
	m.rail.table.release(m.key)
	if err != nil {
		return m.rail.error(provider.ErrRegister, "deregister", err)
	}
	return nil
}

// Assisted implements provider.Host.
func (r *rail) Assisted() (forPeers, byPeers uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, 0
	}
	return r.core.Assisted()
}

// Limited implements provider.Limiter.
func (r *rail) Limited() map[limits.Limit]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[limits.Limit]uint64{limits.ShmPending: r.listener.Evicted()}
	if r.server != nil {
		n[limits.ShmCallers] = r.server.Evicted()
	}
	return n
}
