// Package procstat reads the resource use of this process, and of others, from /proc and getrusage.
package procstat

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is a part of /proc/self/status.
type Usage struct {
	RSSKiB  int64 // resident memory
	Threads int
	SigCgt  string // caught signals, a hexadecimal mask
}

// Self reads the usage of this process.
func Self() (u Usage, err error) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return u, err
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		key, val, _ := strings.Cut(sc.Text(), ":")
		val = strings.TrimSpace(val)
		switch key {
		case "VmRSS":
			u.RSSKiB, _ = strconv.ParseInt(strings.TrimSuffix(val, " kB"), 10, 64)
		case "Threads":
			u.Threads, _ = strconv.Atoi(val)
		case "SigCgt":
			u.SigCgt = val
		}
	}
	return u, sc.Err()
}

// CPUTime returns the processor time of this process so far, user and system.
func CPUTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// FDs lists the open descriptors of this process as names in /proc/self/fd.
func FDs() (names []string, err error) {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	self := strconv.Itoa(int(dir.Fd()))
	all, err := dir.Readdirnames(-1)
	for _, name := range all {
		if name != self {
			names = append(names, name)
		}
	}
	return names, err
}
