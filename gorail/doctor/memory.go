package doctor

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"gorail/backend/topo"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

func (s *checker) memory() {
	s.memlock()
	s.nofile()
}

const ipcLock = 14 // CAP_IPC_LOCK

// capability looks a capability up in a mask of /proc/self/status: CapEff, CapBnd.
func (s *checker) capability(mask string, bit int) bool {
	caps, err := strconv.ParseUint(s.status(mask), 16, 64)
	return err == nil && caps>>bit&1 == 1
}

// status is a line of /proc/self/status.
func (s *checker) status(name string) string {
	for line := range strings.Lines(topo.Word(s.Proc, "self/status")) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func (s *checker) memlock() {
	remedy := "raise it: ulimit -l unlimited, LimitMEMLOCK=infinity of a systemd service, --ulimit memlock=-1 of a container; Kubernetes has no such field: set it in the container runtime's service"
	if s.UID != 0 && s.capability("CapBnd", ipcLock) && !s.capability("CapEff", ipcLock) {
		remedy += "; the capability IPC_LOCK is void here, because this user is not root"
	}
	commands := []string{"ulimit -l unlimited", "docker run --ulimit memlock=-1 ..."}
	switch limit := s.MemLock; {
	case s.capability("CapEff", ipcLock):
		s.Pass("memlock", "%s, which CAP_IPC_LOCK lifts", size(limit))
	case limit == Unlimited:
		s.Pass("memlock", "unlimited")
	case !s.hasRDMA():
		s.Pass("memlock", "%s; no RDMA device here pins memory", size(limit))
	case limit < 64*mib:
		s.Fail("memlock", fmt.Sprintf("this process may lock %s of memory, and RDMA devices pin all registered memory", size(limit)), remedy, commands...)
	default:
		s.Warn("memlock", fmt.Sprintf("this process may lock %s of memory, and RDMA devices pin all registered memory", size(limit)), remedy, commands...)
	}
}

// size formats bytes.
func size(n uint64) string {
	switch {
	case n == Unlimited:
		return "unlimited"
	case n >= gib:
		return fmt.Sprintf("%.4g GiB", float64(n)/gib)
	case n >= mib:
		return fmt.Sprintf("%.4g MiB", float64(n)/mib)
	}
	return fmt.Sprintf("%d KiB", n/kib)
}

func (s *checker) nofile() {
	const remedy = "raise it: ulimit -n, LimitNOFILE of a systemd service, --ulimit nofile of a container"
	commands := []string{"ulimit -n 1048576", "docker run --ulimit nofile=1048576 ..."}
	switch n := s.NoFile; {
	case n == Unlimited:
		s.Pass("nofile", "unlimited")
	case n < 256:
		s.Fail("nofile", fmt.Sprintf("this process may open %d descriptors; an engine takes about 40, and each peer several", n), remedy, commands...)
	case n < 1024:
		s.Warn("nofile", fmt.Sprintf("this process may open %d descriptors, enough for few peers", n), remedy, commands...)
	default:
		s.Pass("nofile", "%d descriptors", n)
	}
}

// exists says that a file or folder is there.
func exists(dir fs.FS, name string) bool {
	_, err := fs.Stat(dir, name)
	return err == nil
}
