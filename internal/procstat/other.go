package procstat

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Of returns the processor time of all threads of a process, in nanoseconds (/proc/PID/task/TID/schedstat). Threads that have ended are not counted.
func Of(pid int) (sum time.Duration, err error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, t := range threads {
		text, err := os.ReadFile(dir + "/" + t.Name() + "/schedstat")
		if err != nil {
			continue // it has ended
		}
		spent, _, _ := strings.Cut(string(text), " ")
		ns, err := strconv.ParseInt(spent, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// Resident returns what the kernel says of a process's memory: the parts of its resident memory, and its page tables.
func Resident(pid int) (lines []string, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "Rss") || strings.HasPrefix(line, "VmPTE") {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
	}
	return lines, err
}

// Descriptors counts the open descriptors of a process by kind: what they lead to, up to the first digit or colon.
func Descriptors(pid int) (kinds map[string]int, err error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	all, err := os.ReadDir(dir)
	kinds = map[string]int{}
	for _, fd := range all {
		what, _ := os.Readlink(dir + "/" + fd.Name())
		if k := strings.IndexAny(what, ":0123456789"); k > 0 {
			what = what[:k]
		}
		kinds[what]++
	}
	return kinds, err
}
