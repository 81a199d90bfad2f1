package verbs

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

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

// atMost returns want, or the device's value if it is known and smaller.
func atMost(device int, want uint32) uint32 {
	if device > 0 && uint64(device) < uint64(want) {
		return uint32(device)
	}
	return want
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
