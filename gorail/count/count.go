// Package count counts what a hot path should not do: C's allocations in all libraries of this process, and locks that another thread
// holds. A program that imports it has a malloc and pthread locks of its own, which count and call those of the C library.
package count

/*
#cgo LDFLAGS: -ldl
#include "count.h"
#include "callers.h"
*/
import "C"

import "unsafe"

// Use is what a process has used. The counts only grow.
type Use struct {
	Allocs    uint64 // calls of malloc, calloc and the like
	Contended uint64 // pthread locks that another thread held when they were asked for
	Switches  uint64 // voluntary context switches: a thread slept
	Preempted uint64 // involuntary ones
	Faults    uint64 // page faults that no disk served
}

// Size is the number of counts that Func writes.
const Size = C.GR_COUNTS

// Func is the C function that Now calls: void f(uint64_t out[Size]).
var Func = unsafe.Pointer(C.gr_count_look)

// Now reads the counts of this process.
func Now() Use {
	var n [Size]C.uint64_t
	C.gr_count_look(&n[0])
	var out [Size]uint64
	for i := range n {
		out[i] = uint64(n[i])
	}
	return Of(out)
}

// Of names the counts of Func.
func Of(n [Size]uint64) Use {
	return Use{n[C.GR_ALLOCS], n[C.GR_CONTENDED], n[C.GR_SWITCHES], n[C.GR_PREEMPTED], n[C.GR_FAULTS]}
}

// Sub returns what was used since o.
func (u Use) Sub(o Use) Use {
	return Use{u.Allocs - o.Allocs, u.Contended - o.Contended, u.Switches - o.Switches, u.Preempted - o.Preempted, u.Faults - o.Faults}
}

// Add adds what another process used.
func (u *Use) Add(o Use) {
	u.Allocs, u.Contended, u.Switches, u.Preempted, u.Faults = u.Allocs+o.Allocs, u.Contended+o.Contended, u.Switches+o.Switches, u.Preempted+o.Preempted, u.Faults+o.Faults
}

// Trace calls f, and returns how often each library of the process has allocated meanwhile, by its file's name: the innermost caller
// beside C's and C++'s own libraries, "" for this program. It makes allocations slow. Not safe for concurrent use.
func Trace(f func()) map[string]uint64 {
	C.gr_callers_start()
	f()
	out := map[string]uint64{}
	for i := range C.gr_callers_stop() {
		var name [C.GR_NAME]C.char
		if n := C.gr_callers_of(i, &name[0]); n > 0 {
			out[C.GoString(&name[0])] += uint64(n)
		}
	}
	return out
}
