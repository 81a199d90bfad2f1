package verbs

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"gorail/backend/provider"
	"gorail/backend/provider/internal/clib"
)

// peersAccess is what peers and the device may do with a region.
const peersAccess = accessLocalWrite | accessRemoteWrite | accessRemoteRead

// RegisterDMABuf makes length bytes from offset on of a dmabuf reachable, under the addresses from iova on, which must lie in its page as offset
// does. fd stays the caller's. Implements ibv_reg_dmabuf_mr (rdma-core 34, kernel 5.12). The error wraps
// provider.ErrRegister and the errno.
func (r *rail) RegisterDMABuf(fd int, offset, length, iova uint64) (provider.MR, error) {
	mr, err := r.regDMABuf(fd, offset, length, iova)
	if err != nil {
		return nil, r.refused(fmt.Sprintf("ibv_reg_dmabuf_mr of %d bytes at %#x of descriptor %d", length, offset, fd), length, err)
	}
	return r.opened(mr, iova), nil
}

func (r *rail) regDMABuf(fd int, offset, length, iova uint64) (*ibvMR, error) {
	page := uint64(os.Getpagesize())
	switch {
	case !r.dmabuf:
		return nil, clib.Failed("ibv_reg_dmabuf_mr", syscall.EOPNOTSUPP)
	case (offset^iova)&(page-1) != 0: // both must lie alike in their pages
		return nil, clib.Failed("ibv_reg_dmabuf_mr", syscall.EINVAL)
	}
	return r.lib.regDMABuf(r.c.pd, fd, offset, length, iova, peersAccess|accessRelaxed)
}

// canDMABuf tries a descriptor that is none: whoever knows dmabufs says EBADF, kernels (before 5.12) and drivers that don't say other things.
func (l *library) canDMABuf(pd *ibvPD) bool {
	if !l.hasDMABuf() {
		return false
	}
	mr, err := l.regDMABuf(pd, -1, 0, uint64(os.Getpagesize()), 0, accessLocalWrite)
	if err == nil {
		_ = l.deregMR(mr)
		return false
	}
	return clib.As(err).Errno == syscall.EBADF
}

// canODP says whether what connections of ours do with memory works with pages that may not be there.
func canODP(ctx *ibvContext) bool {
	general, connections, ok := queryODP(ctx)
	return ok && general&odpSupport != 0 && connections&odpConnections == odpConnections
}

// opened is a region of a registration.
func (r *rail) opened(mr *ibvMR, base uint64) *region {
	r.regions.Add(1)
	return &region{rail: r, c: mr, base: base}
}

// refused is the error of a registration, with the limit that it has met and what raises it.
func (r *rail) refused(what string, length uint64, err error) error {
	errno := clib.As(err).Errno
	return fmt.Errorf("%w: %s/%s: %s: %w%s", provider.ErrRegister, r.dev.Fabric, r.dev.Name, what, errno, r.mrLimit(errno, length))
}

func (r *rail) mrLimit(errno syscall.Errno, length uint64) string {
	kib, limited := memlock()
	switch {
	case (errno == syscall.ENOMEM || errno == syscall.EAGAIN || errno == syscall.EPERM) && limited:
		return fmt.Sprintf(" (RLIMIT_MEMLOCK: %d KiB may be locked, all registrations of the process together; raise it: %s)", kib, raiseMemlock)
	case errno == syscall.ENOMEM || errno == syscall.EAGAIN:
		return fmt.Sprintf(" (RLIMIT_MEMLOCK is unlimited: out of memory, or of the device's regions, %d: register fewer and larger ranges)", r.attr.maxMR)
	case errno == syscall.EINVAL && length > r.attr.maxMRSize:
		return fmt.Sprintf(" (the device takes %d bytes a region: option mr_max)", r.attr.maxMRSize)
	case errno == syscall.EFAULT:
		return " (the range is not mapped as a whole, or may not be written to: what is registered must be both; no limit to raise)"
	case errno == syscall.EOPNOTSUPP && r.opt.ODP:
		return " (the device does not take this memory on demand: option ib_odp=off)"
	}
	return limit(errno)
}

// raiseMemlock is what raises RLIMIT_MEMLOCK.
const raiseMemlock = "ulimit -l unlimited, LimitMEMLOCK=infinity of a systemd service, --ulimit memlock=-1 of a container"

// memlock is how much memory the process may lock, in KiB; false: all.
func memlock() (kib uint64, limited bool) {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil || l.Cur == ^uint64(0) {
		return 0, false
	}
	return l.Cur >> 10, true
}
