//go:build failpoints

package failpoint

// #include "failpoint.h"
import "C"

import (
	"math"
	"sync"
	"syscall"
)

// numbers are the points by name.
var numbers = sync.OnceValue(func() map[string]int {
	m := make(map[string]int)
	for i := range int(C.GR_FAILPOINT_COUNT) {
		m[C.GoString(C.failpoint_name(C.int(i)))] = i
	}
	return m
})

func number(name string) C.int {
	i, ok := numbers()[name]
	if !ok {
		panic("failpoint " + name + " is not in gr_failpoint.h")
	}
	return C.int(i)
}

// Fail counts a pass of the point. It returns the error that this pass fails with; nil: the pass goes on.
func Fail(name string) error {
	if rc, errno := C.gr_failpoint(number(name)); rc != 0 {
		return errno
	}
	return nil
}

// Names are all points, in the order of the list.
func Names() []string {
	names := make([]string, len(numbers()))
	for name, i := range numbers() {
		names[i] = name
	}
	return names
}

// Arm lets the n-th pass of the point from now on fail, and only that one. It counts all points from 0 again. n 0: no pass
// fails. One test at a time.
func Arm(name string, n int, errno syscall.Errno) {
	C.failpoint_arm(number(name), C.uint64_t(n), C.uint64_t(n), C.int(errno))
}

// ArmAll lets every pass of the point fail until the next Arm. It counts all points from 0 again.
func ArmAll(name string, errno syscall.Errno) {
	C.failpoint_arm(number(name), 1, math.MaxUint64, C.int(errno))
}

// Passes is how often the point was passed since Arm.
func Passes(name string) int { return int(C.failpoint_passes(number(name))) }
