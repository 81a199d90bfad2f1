package worker

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"gorail/internal/procstat"
)

// selfStats reads the state of this process.
func selfStats() (Stats, error) {
	st := Stats{CPU: procstat.CPUTime()}
	fds, err := procstat.FDs()
	if err != nil {
		return st, err
	}
	st.FDs, st.Doubles = len(fds), doubles(fds)
	u, err := procstat.Self()
	st.RSSKiB, st.Threads, st.SigCgt = u.RSSKiB, u.Threads, u.SigCgt
	return st, err
}

// doubles counts descriptors of imitated GPU memory that has another descriptor, too.
func doubles(fds []string) (n int) {
	seen := map[uint64]bool{}
	for _, fd := range fds {
		var file unix.Stat_t
		path := "/proc/self/fd/" + fd
		if what, err := os.Readlink(path); err != nil || !strings.HasPrefix(what, "/memfd:gpu ") || unix.Stat(path, &file) != nil {
			continue
		}
		if seen[file.Ino] {
			n++
		}
		seen[file.Ino] = true
	}
	return n
}
