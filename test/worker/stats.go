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
	seen := map[uint64]bool{}
	for _, fd := range fds {
		var file unix.Stat_t
		path := "/proc/self/fd/" + fd.Name()
		if what, err := os.Readlink(path); err != nil || !strings.HasPrefix(what, "/memfd:gpu ") || unix.Stat(path, &file) != nil {
			continue
		}
		if seen[file.Ino] {
			st.Doubles++
		}
		seen[file.Ino] = true
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
