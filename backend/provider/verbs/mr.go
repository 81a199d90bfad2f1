package verbs

/*
#include "verbs.h"
*/
import "C"

import (
	"fmt"
	"syscall"

	"gorail/backend/provider"
)

var _ provider.DMABufRegisterer = (*rail)(nil)

// RegisterDMABuf implements provider.DMABufRegisterer by ibv_reg_dmabuf_mr (rdma-core 34, kernel 5.12). The error wraps
// provider.ErrRegister and the errno.
func (r *rail) RegisterDMABuf(fd int, offset, length, iova uint64) (provider.MR, error) {
	what := fmt.Sprintf("ibv_reg_dmabuf_mr of %d bytes at %#x of descriptor %d", length, offset, fd)
	var mr *C.struct_ibv_mr
	if rc := C.vb_mr_open_dmabuf(r.c, C.int(fd), C.uint64_t(offset), C.uint64_t(length), C.uint64_t(iova), &mr); rc != 0 {
		return nil, r.refused(what, length, rc)
	}
	return &region{rail: r, c: mr, base: iova}, nil
}

// refused is the error of a registration, with the limit that it has met and what raises it.
func (r *rail) refused(what string, length uint64, rc C.int) error {
	errno := syscall.Errno(-rc)
	return fmt.Errorf("%w: %s/%s: %s: %w%s", provider.ErrRegister, r.dev.Fabric, r.dev.Name, what, errno, r.mrLimit(errno, length))
}

func (r *rail) mrLimit(errno syscall.Errno, length uint64) string {
	attr := &r.c.dev
	kib, limited := memlock()
	switch {
	case (errno == syscall.ENOMEM || errno == syscall.EAGAIN || errno == syscall.EPERM) && limited:
		return fmt.Sprintf(" (RLIMIT_MEMLOCK: %d KiB may be locked, all registrations of the process together; raise it: %s)", kib, raiseMemlock)
	case errno == syscall.ENOMEM || errno == syscall.EAGAIN:
		return fmt.Sprintf(" (RLIMIT_MEMLOCK is unlimited: out of memory, or of the device's regions, %d: register fewer and larger ranges)", attr.max_mr)
	case errno == syscall.EINVAL && length > uint64(attr.max_mr_size):
		return fmt.Sprintf(" (the device takes %d bytes a region: option mr_max)", uint64(attr.max_mr_size))
	case errno == syscall.EFAULT:
		return " (the range is not mapped as a whole, or may not be written to: what is registered must be both; no limit to raise)"
	case errno == syscall.EOPNOTSUPP && r.c.opt.odp != 0:
		return " (the device does not take this memory on demand: option ib_odp=off)"
	}
	return limit(errno)
}

// raiseMemlock is what raises RLIMIT_MEMLOCK.
const raiseMemlock = "ulimit -l unlimited, LimitMEMLOCK=infinity of a systemd service, --ulimit memlock=-1 of a container"

// memlock is how much memory the process may lock, in KiB; false: all.
func memlock() (kib uint64, limited bool) {
	var l syscall.Rlimit
	const resource = 8 // RLIMIT_MEMLOCK, which package syscall lacks
	if syscall.Getrlimit(resource, &l) != nil || l.Cur == ^uint64(0) {
		return 0, false
	}
	return l.Cur >> 10, true
}

func flag(b bool) C.uint8_t {
	if b {
		return 1
	}
	return 0
}
