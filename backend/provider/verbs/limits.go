package verbs

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

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

// limit says which limit an errno of registration or creation speaks of, and how to raise it.
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

// atMost is want, or less where the device has less and says so.
func atMost(device int, want uint32) uint32 {
	if device > 0 && uint64(device) < uint64(want) {
		return uint32(device)
	}
	return want
}

// mostMR is what regions are sliced by: one of more than 4 GiB was seen at 6.0 GB/s where slices of 3.5 GiB gave 9.24 (mlx5,
// 4 KiB pages, IOMMU on).
const mostMR = 3584 << 20

// maxMR is that, or less where the device takes less.
func maxMR(device uint64) uint64 {
	if device > 0 && device < mostMR {
		return device
	}
	return mostMR
}
