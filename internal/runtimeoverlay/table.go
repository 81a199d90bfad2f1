package main

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// kept are the entries of the table of signals that stay in a library, by number.
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

// table checks that the runtime's table of signals is the one that forget was written for.
func table(src []byte) error {
	next := 0
	for _, m := range entry.FindAllSubmatch(src, -1) {
		n, err := strconv.Atoi(string(m[1]))
		if err != nil || n != next {
			return fmt.Errorf("entry %q follows %d", m[0], next-1)
		}
		if want, keep := kept[n]; keep && string(m[2]) != want {
			return fmt.Errorf("signal %d has the flags %s, not %s", n, m[2], want)
		}
		next = n + 1
	}
	if next != signals {
		return fmt.Errorf("the table has %d entries, not %d", next, signals)
	}
	return nil
}

// forget returns the statements by which a library takes all other entries out of its table, before anything reads it.
func forget() string {
	var numbers []string
	for _, n := range slices.Sorted(maps.Keys(kept)) {
		numbers = append(numbers, strconv.Itoa(n))
	}
	return `	if isarchive || islibrary { // the host's signals are its own
		for i := range sigtable {
			switch i {
			case ` + strings.Join(numbers, ", ") + `:
			default:
				sigtable[i].flags = 0
			}
		}
		preemptMSupported = false
	}

`
}
