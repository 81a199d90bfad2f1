package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/failpoint"
	"gorail/backend/gpu"
	"gorail/backend/host"
	"gorail/backend/limits"
	"gorail/backend/provider"
	"gorail/backend/provider/shm/cma"
	"gorail/backend/provider/shm/ipc"
	"gorail/backend/topo"
)

// endpoints counts those of a rail.
type endpoints struct {
	openEPs  atomic.Int64 // open endpoints
	hadPeers atomic.Bool  // an endpoint was opened
}

// rail implements provider.Rail and provider.Host: this process's table of regions, and the threads that copy.
type rail struct {
	dev      provider.Device
	core     cma.Rail
	host     *ipc.Host
	noFolder error // why host has no folder; nil: it has one, or none was asked for
	listener *ipc.HandshakeListener
	stale    stale
	mapper   *mapper
	gpus     *gpu.LazyDriver
	ringSize uint64 // bytes of an endpoint's ring

	table             *table
	tableFD, sharesFD int // of the segments that peers read

	endpoints

	mu        sync.Mutex
	closed    bool
	server    *ipc.DescriptorServer // descriptor server of VMM memory; nil before the first region that needs it
	notedGPUs map[int]bool          // GPUs that noteGPU has seen
	reports   []string
	warnings  warnings
	notes     []string // written by openFolder alone
}

var (
	_ provider.Host     = (*rail)(nil)
	_ provider.VRAM     = (*rail)(nil)
	_ provider.Reporter = (*rail)(nil)
)

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

func (r *rail) Device() provider.Device { return r.dev }
func (r *rail) Caps() provider.Caps     { return r.core.Caps() }
func (r *rail) Notes() []string         { return r.notes }
func (r *rail) Core() unsafe.Pointer    { return r.core.Core() }

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

// Close ends the threads. It fails with EBUSY and changes nothing while endpoints or regions are open. A second Close
// does nothing.
func (r *rail) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	if r.openEPs.Load() > 0 || !r.table.end() {
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
	if r.listener, err = ipc.ListenHandshakes(sizes, r.host); err != nil {
		return err
	}
	r.noteFolder(o)
	copying := cma.Options{Threads: o.Threads, Copies: o.Copies, NoAssist: o.NoAssist, CPUs: host.Quota(), Host: r.host, Binds: localBinds(o.Threads)}
	if r.core, err = cma.Open(copying, *p); err != nil {
		return ipc.Fail("calloc", err)
	}
	r.table = newTable(p.Table, p.Shares, r.core.Rights())
	r.mapper = newMapper(r.core, p.Mapper, !o.NoMapping, r.warn)
	r.table.watches.first = r.mapper.noteChanged // looks begin
	r.gpus = gpu.NewLazyDriver(o.CUDA, cma.MaxGPUs)
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

// Assisted implements provider.Host.
func (r *rail) Assisted() (forPeers, byPeers uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, 0
	}
	return r.core.Assisted()
}

// Packed implements provider.Reporter: nothing is.
func (r *rail) Packed() (before, after uint64) { return 0, 0 }

// Limited implements provider.Reporter.
func (r *rail) Limited() map[limits.Limit]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[limits.Limit]uint64{limits.ShmPending: r.listener.Evicted()}
	if r.server != nil {
		n[limits.ShmCallers] = r.server.Evicted()
	}
	return n
}

// numaBinds lists, for each NUMA node, the processors on which copying threads run. They are the node's allowed
// processors, or all allowed processors if the node has fewer than there are threads. The list is empty if all
// allowed processors are on one node, or if there are more than cma.MaxNodes nodes.
func numaBinds(nodes []topo.Node, allowed map[int]bool, threads int) (out []cma.Bind) {
	var all []int
	of := make([][]int, len(nodes))
	some := 0
	for i, n := range nodes {
		for _, cpu := range n.CPUs {
			if allowed[cpu] {
				of[i] = append(of[i], cpu)
			}
		}
		all = append(all, of[i]...)
		if len(of[i]) > 0 {
			some++
		}
	}
	if some < 2 || len(nodes) > cma.MaxNodes {
		return nil
	}
	for i, n := range nodes {
		cpus := of[i]
		if len(cpus) < threads {
			cpus = all
		}
		out = append(out, cma.Bind{Node: n.ID, CPUs: cpus})
	}
	return out
}

// allowedCPUs are the processors that this process may use. Implements sched_getaffinity(2).
func allowedCPUs() map[int]bool {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	cpus := map[int]bool{}
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus[cpu] = true
		}
	}
	return cpus
}

// localBinds is numaBinds for this machine.
func localBinds(threads int) []cma.Bind {
	return numaBinds(topo.Nodes(os.DirFS("/sys")), allowedCPUs(), threads)
}

func (r *rail) report(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, line)
}

// Reports implements provider.Host.
func (r *rail) Reports() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	reports := r.reports
	r.reports = nil
	return reports
}

// warnings are problems that an operator should fix.
type warnings struct {
	unlogged []string
	seen     map[string]bool // all so far
}

// warn keeps a warning for the log, each text once. Texts depend on peers, so their number is bounded.
func (r *rail) warn(text string) {
	const most = 64
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &r.warnings
	if w.seen[text] || len(w.seen) == most {
		return
	}
	if w.seen == nil {
		w.seen = map[string]bool{}
	}
	w.seen[text] = true
	w.unlogged = append(w.unlogged, text)
}

// Warnings implements provider.Reporter.
func (r *rail) Warnings() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	unlogged := r.warnings.unlogged
	r.warnings.unlogged = nil
	if r.closed {
		return unlogged
	}
	if at := r.core.Refused(); at != 0 {
		errno := unix.Errno(at & 0xff)
		why := fmt.Sprintf("%s: has one of the two changed its user, or its dumpable flag?", accessHint(errno))
		if errno == unix.ESRCH {
			why = ": has its first thread ended?"
		}
		unlogged = append(unlogged, fmt.Sprintf("the kernel does not let us access the memory of process %d any more: its transfers take the ring from now on, "+
			"which copies twice (process_vm_readv: %v)%s", at>>8, errno, why))
	}
	return unlogged
}
