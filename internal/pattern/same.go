package pattern

import (
	"bytes"
	"fmt"
)

// TB is the used part of testing.TB.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Same ends the test if got differs from want. It prints what differs, and not megabytes. what, if given, is a format and its arguments.
func Same(t TB, want, got []byte, what ...any) {
	t.Helper()
	if bytes.Equal(want, got) {
		return
	}
	name := ""
	if len(what) > 0 {
		name = fmt.Sprintf(fmt.Sprint(what[0]), what[1:]...) + ": "
	}
	t.Fatalf("%s%s", name, difference(want, got))
}

// difference says what differs between two slices.
func difference(want, got []byte) string {
	if len(want) != len(got) {
		return fmt.Sprintf("%d bytes, want %d", len(got), len(want))
	}
	first, n := -1, 0
	for i := range want {
		if want[i] != got[i] {
			if n++; first < 0 {
				first = i
			}
		}
	}
	end := min(first+16, len(want))
	return fmt.Sprintf("%d of %d bytes differ, the first is %d: got % x, want % x", n, len(want), first, got[first:end], want[first:end])
}
