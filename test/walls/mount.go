package walls

import (
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// own are the file systems that hide those of the host.
var own = []struct{ kind, at, data string }{
	{"proc", "/proc", ""},
	{"tmpfs", "/tmp", "mode=1777"},
	{"tmpfs", "/run", "mode=755"},
	{"tmpfs", "/dev/shm", "mode=1777"},
}

// mount makes the container's mounts. The folders of the host are opened first, since the container's own mounts hide them.
func (c *Container) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	shared := make([]int, len(c.Mounts))
	for i, m := range c.Mounts {
		fd, err := unix.Open(m.Host, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: m.Host, Err: err}
		}
		defer unix.Close(fd)
		shared[i] = fd
	}
	for _, m := range own {
		if err := unix.Mount(m.kind, m.at, m.kind, unix.MS_NOSUID|unix.MS_NODEV, m.data); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.at, err)
		}
	}
	for i, m := range c.Mounts {
		if err := os.MkdirAll(m.At, 0o755); err != nil {
			return err
		}
		if m.Full {
			if err := unix.Mount("tmpfs", m.At, "tmpfs", 0, "nr_inodes=1,mode=1777"); err != nil { // for its own folder
				return fmt.Errorf("mount a full file system at %s: %w", m.At, err)
			}
			continue
		}
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", shared[i]), m.At, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.Host, m.At, err)
		}
		if m.ReadOnly {
			if err := unix.Mount("", m.At, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				return fmt.Errorf("mount %s read-only: %w", m.At, err)
			}
		}
	}
	return nil
}

// kept are the capabilities that container runtimes leave to root by default.
var kept = []uintptr{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FSETID, unix.CAP_FOWNER, unix.CAP_MKNOD, unix.CAP_NET_RAW, unix.CAP_SETGID, unix.CAP_SETUID,
	unix.CAP_SETFCAP, unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT, unix.CAP_KILL, unix.CAP_AUDIT_WRITE}

// dropRights takes all other capabilities from what the thread executes next. Implements capabilities(7): the bounding set
// limits what root gains by execve.
func dropRights() error {
	for right := uintptr(0); right <= unix.CAP_LAST_CAP; right++ {
		if slices.Contains(kept, right) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, right, 0, 0, 0); err != nil && err != unix.EINVAL { // an older kernel lacks it
			return os.NewSyscallError("prctl", err)
		}
	}
	return nil
}
