package worker

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPUTime is what the process used so far, user and system.
func CPUTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func selfStats() (Stats, error) {
	st := Stats{CPU: CPUTime()}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return st, err
	}
	st.FDs = len(fds) - 1 // one is the folder itself
	for _, fd := range fds {
		if what, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && (strings.HasPrefix(what, "/memfd:gpu") || strings.HasPrefix(what, "/dev/")) {
			st.GPUFDs++
		}
	}
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return st, err
	}
	defer func() { _ = f.Close() }()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		key, val, _ := strings.Cut(sc.Text(), ":")
		val = strings.TrimSpace(val)
		switch key {
		case "VmRSS":
			st.RSSKiB, _ = strconv.ParseInt(strings.TrimSuffix(val, " kB"), 10, 64)
		case "Threads":
			st.Threads, _ = strconv.Atoi(val)
		case "SigCgt":
			st.SigCgt = val
		}
	}
	return st, nil
}
