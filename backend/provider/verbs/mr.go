package verbs

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
	"gorail/backend/provider/verbs/ibverbs"
)

// Register implements ibv_reg_mr_iova2 (ibv_reg_mr before rdma-core 28). The memory must be mapped. It is pinned.
// key is ignored: the device chooses. The error wraps provider.ErrRegister and the errno.
func (r *rail) Register(addr, length, _ uint64, peers option.Rights) (provider.MR, error) {
	if err := r.dev.CheckRange(addr, length); err != nil {
		return nil, err
	}
	m, err := r.register(addr, peers, func(flags uint32) (*ibverbs.MR, error) { return r.c.Register(addr, length, flags) })
	if err != nil {
		return nil, r.registerError(fmt.Sprintf("ibv_reg_mr of %d bytes at %#x", length, addr), length, err)
	}
	return m, nil
}

// Later implements provider.Rail: the memory must be mapped, and is pinned.
func (r *rail) Later(uint64, uint64) bool { return false }

// region implements provider.MR.
type region struct {
	rail *rail
	base uint64

	mu sync.Mutex
	c  *ibverbs.MR // nil when closed
}

func (m *region) Key(provider.Salt) uint64 { return uint64(ibverbs.RKey(m.c)) }
func (m *region) Base() uint64             { return m.base }

// Desc returns the registration for our own requests.
func (m *region) Desc() unsafe.Pointer { return unsafe.Pointer(m.c) }

func (m *region) Same() error { return nil }

// Close implements ibv_dereg_mr.
func (m *region) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.c == nil {
		return nil
	}
	if err := m.rail.lib.DeregMR(m.c); err != nil {
		return m.rail.error(provider.ErrRegister, err, "")
	}
	m.c = nil
	m.rail.regions.Add(-1)
	return nil
}

// accessOf returns the access of the device, and of peers, to a region. Who may WRITE may READ, too: a byte that is read
// back proves WRITEs (post.c, proof). There the peer's engine refuses READs.
func accessOf(peers option.Rights) uint32 {
	flags := uint32(ibverbs.AccessLocalWrite)
	if peers != 0 {
		flags |= ibverbs.AccessRemoteRead
	}
	if peers.Allow(option.PeersWrite) {
		flags |= ibverbs.AccessRemoteWrite
	}
	return flags
}

// RegisterDMABuf registers length bytes of a dmabuf from offset on, under the remote addresses from iova on. offset and
// iova must have the same position within a page. fd stays the caller's. Implements ibv_reg_dmabuf_mr (rdma-core 34,
// kernel 5.12). The error wraps provider.ErrRegister and the errno.
func (r *rail) RegisterDMABuf(fd int, offset, length, iova uint64, peers option.Rights) (provider.MR, error) {
	m, err := r.register(iova, peers, func(flags uint32) (*ibverbs.MR, error) { return r.regDMABuf(fd, offset, length, iova, flags) })
	if err != nil {
		return nil, r.registerError(fmt.Sprintf("ibv_reg_dmabuf_mr of %d bytes at %#x of descriptor %d", length, offset, fd), length, err)
	}
	return m, nil
}

func (r *rail) regDMABuf(fd int, offset, length, iova uint64, flags uint32) (*ibverbs.MR, error) {
	page := uint64(os.Getpagesize())
	switch {
	case !r.dmabuf:
		return nil, clib.Failed("ibv_reg_dmabuf_mr", syscall.EOPNOTSUPP)
	case (offset^iova)&(page-1) != 0: // both must have the same offset in their pages
		return nil, clib.Failed("ibv_reg_dmabuf_mr", syscall.EINVAL)
	}
	return r.c.RegisterDMABuf(fd, offset, length, iova, int(flags)|ibverbs.AccessRelaxed)
}

// register makes the region of a registration by call, and counts it.
func (r *rail) register(base uint64, peers option.Rights, call func(flags uint32) (*ibverbs.MR, error)) (*region, error) {
	mr, err := call(accessOf(peers))
	if err != nil {
		return nil, err
	}
	r.regions.Add(1)
	return &region{rail: r, c: mr, base: base}, nil
}

// registerError returns the error of a failed registration, with the limit behind it and how to raise that limit.
func (r *rail) registerError(what string, length uint64, err error) error {
	errno := clib.As(err).Errno
	return fmt.Errorf("%w: %s/%s: %s: %w%s", provider.ErrRegister, r.dev.Fabric, r.dev.Name, what, errno, r.mrLimit(errno, length))
}

func (r *rail) mrLimit(errno syscall.Errno, length uint64) string {
	kib, limited := memlock()
	switch {
	case (errno == syscall.ENOMEM || errno == syscall.EAGAIN || errno == syscall.EPERM) && limited:
		return fmt.Sprintf(" (RLIMIT_MEMLOCK: %d KiB may be locked, all registrations of the process together; raise it: %s)", kib, raiseMemlock)
	case errno == syscall.ENOMEM || errno == syscall.EAGAIN:
		return fmt.Sprintf(" (RLIMIT_MEMLOCK is unlimited: out of memory, or of the device's regions, %d: register fewer and larger ranges)", r.attr.MaxMR)
	case errno == syscall.EINVAL && length > r.attr.MaxMRSize:
		return fmt.Sprintf(" (the device takes %d bytes a region: option mr_max)", r.attr.MaxMRSize)
	case errno == syscall.EFAULT:
		return " (the range is not mapped as a whole, or may not be written to: registered memory must be mapped and writable)"
	}
	return limit(errno)
}

// raiseMemlock explains how to raise RLIMIT_MEMLOCK.
const raiseMemlock = "ulimit -l unlimited, LimitMEMLOCK=infinity of a systemd service, --ulimit memlock=-1 of a container"

// memlock returns the RLIMIT_MEMLOCK of the process in KiB; false: unlimited.
func memlock() (kib uint64, limited bool) {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil || l.Cur == ^uint64(0) {
		return 0, false
	}
	return l.Cur >> 10, true
}

// limit names the limit behind an errno of registration or creation, and how to raise that limit.
func limit(errno syscall.Errno) string {
	switch errno {
	case syscall.ENOMEM, syscall.EAGAIN:
		if kib, limited := memlock(); limited {
			return fmt.Sprintf(" (RLIMIT_MEMLOCK: %d KiB of memory may be locked; raise it: %s)", kib, raiseMemlock)
		}
		return " (out of memory, or of the device's resources)"
	case syscall.EMFILE:
		return " (out of file descriptors: ulimit -n)"
	}
	return ""
}

// sliceMR is the largest region. Larger memory is registered in slices. One region of more than 4 GiB ran at 6.0 GB/s,
// slices of 3.5 GiB at 9.24 GB/s (mlx5, 4 KiB pages, IOMMU on).
const sliceMR = 3584 << 20

// maxMR returns sliceMR, or the device's limit if it is smaller.
func maxMR(device uint64) uint64 {
	if device > 0 && device < sliceMR {
		return device
	}
	return sliceMR
}
