package core

// #include <stdlib.h>
// #include "gr_policy.h"
import "C"

import (
	"fmt"
	"math/bits"
	"syscall"
	"time"
	"unsafe"
)

// TraceMax is the number of transfers that a trace takes.
const TraceMax = C.GR_TRACE_MAX

// Traced is a transfer that ended during a trace.
type Traced struct {
	Posted, Ended time.Duration // as Now
	Handle        uint64
	Bytes         uint64
	Session       uint64 // of its last post; 0: none
	Rails         []int  // our rails that moved bytes of it
	Op, Err       int
	Coarse        bool // Posted may be four milliseconds off
}

// StartTrace notes all transfers that end until StopTrace, up to TraceMax. One trace at a time. Implements gr_trace_start.
func (k *Core) StartTrace() error {
	if rc := C.gr_trace_start(k.c); rc != 0 {
		return fmt.Errorf("start a trace: %w", syscall.Errno(-rc))
	}
	return nil
}

// StopTrace ends the trace. lost is the number of transfers that found no room. Implements gr_trace_stop.
func (k *Core) StopTrace() (list []Traced, lost uint64) {
	mem := (*C.gr_traced)(C.malloc(C.GR_TRACE_MAX * C.sizeof_gr_traced)) // too large for the stack; Go's malloc never returns nil
	defer C.free(unsafe.Pointer(mem))
	var none C.uint64_t
	n := C.gr_trace_stop(k.c, mem, &none)
	for _, t := range unsafe.Slice(mem, n) {
		x := Traced{Posted: time.Duration(t.posted_ns), Ended: time.Duration(t.ended_ns), Handle: uint64(t.handle), Bytes: uint64(t.bytes),
			Session: uint64(t.sess), Op: int(t.op), Err: int(t.err), Coarse: t.coarse != 0}
		for m := uint64(t.rails); m != 0; m &= m - 1 {
			x.Rails = append(x.Rails, bits.TrailingZeros64(m))
		}
		list = append(list, x)
	}
	return list, uint64(none)
}
