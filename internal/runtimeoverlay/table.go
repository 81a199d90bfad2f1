package main

import (
	"fmt"
	"regexp"
	"strconv"
)

// kept are the entries of the table of signals that stay, by number.
var kept = map[int]string{
	7:  "_SigPanic + _SigUnblock",    // SIGBUS, SIGFPE and SIGSEGV: faults of Go code become panics
	8:  "_SigPanic + _SigUnblock",    //
	11: "_SigPanic + _SigUnblock",    //
	32: "_SigSetStack + _SigUnblock", // glibc's own, with which it cancels threads
	33: "_SigSetStack + _SigUnblock", // and makes setuid reach all threads
}

// signals is the number of entries, with 0.
const signals = 65

// entry matches an entry of the table: its number, its flags.
var entry = regexp.MustCompile(`(?m)^\t/\* (\d+) \*/ \{([^,]*), "`)

// table returns the table of signals with no flags but for the kept entries.
func table(src []byte) ([]byte, error) {
	next, wrong := 0, error(nil)
	out := entry.ReplaceAllFunc(src, func(line []byte) []byte {
		m := entry.FindSubmatch(line)
		flags := string(m[2])
		n, err := strconv.Atoi(string(m[1]))
		if err != nil || n != next {
			wrong = fmt.Errorf("entry %q follows %d", line, next-1)
		}
		next = n + 1
		want, keep := kept[n]
		if !keep {
			return fmt.Appendf(nil, "\t/* %d */ {0, \"", n)
		}
		if flags != want {
			wrong = fmt.Errorf("signal %d has the flags %s, not %s", n, flags, want)
		}
		return line
	})
	if wrong == nil && next != signals {
		wrong = fmt.Errorf("the table has %d entries, not %d", next, signals)
	}
	return out, wrong
}
