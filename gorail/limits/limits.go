// Package limits times copies that no backend can beat, with the loops in C: memcpy within a process, process_vm_readv
// and process_vm_writev between processes, a plain TCP connection whose ends spin.
package limits

/*
#include <stdlib.h>
#include "limits.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"gorail/gorail/measure"
)

// Desc is a range of this process (Local) and a range of the other process (Remote). For memcpy Remote is in this
// process, too.
type Desc struct {
	Local, Remote uintptr
	Len           uint64
}

// This fails to compile unless the layouts agree.
const _ = -(unsafe.Sizeof(Desc{}) ^ unsafe.Sizeof(C.lim_desc{}))

// Job is the work of one thread.
type Job struct {
	Descs []Desc
	Sock  int // tcp: a connected socket whose other end runs Answer
}

// Out is the result of one thread.
type Out struct {
	Posted uint64 // including those before the clock started
	Done   uint64
	Began  time.Duration // the time of CLOCK_MONOTONIC when the clock started
	Wall   time.Duration
	Lat    measure.Times
	Err    error
}

var kinds = map[string]C.int{"memcpy": C.LIM_MEMCPY, "process_vm": C.LIM_PROCESS_VM, "tcp": C.LIM_TCP}

// Run copies repeatedly, one thread per job, all timed together. kind is one of measure.Limits.
func Run(kind, op string, pid int, jobs []Job, pace measure.Pace) []Out {
	gate := (*C.int)(C.calloc(1, C.sizeof_int))
	defer C.free(unsafe.Pointer(gate))
	*gate = C.int(len(jobs))
	out := make([]Out, len(jobs))
	var all sync.WaitGroup
	for i, job := range jobs {
		all.Go(func() {
			j := (*C.lim_job)(C.calloc(1, C.sizeof_lim_job))
			defer C.free(unsafe.Pointer(j))
			j.kind, j.pid, j.fd, j.gate = kinds[kind], C.int(pid), C.int(job.Sock), gate
			if op == "WRITE" {
				j.write = 1
			}
			list := copyOf(job.Descs)
			defer C.free(unsafe.Pointer(list))
			j.desc, j.n = list, C.size_t(len(job.Descs))
			j.warmup, j.count = C.uint64_t(pace.Warmup), C.uint64_t(pace.Count/uint64(len(jobs)))
			j.time_ns, j.limit_ns = C.int64_t(pace.Time), C.int64_t(pace.Limit)
			C.lim_run(j)
			n := unsafe.Slice((*uint64)(unsafe.Pointer(&j.lat.n[0])), len(j.lat.n))
			out[i] = Out{Posted: uint64(j.posted), Done: uint64(j.done), Began: time.Duration(j.began_ns), Wall: time.Duration(j.wall_ns),
				Lat: measure.Times{Sum: uint64(j.lat.sum), Max: uint64(j.lat.max), N: append([]uint64{}, n...)}}
			if j.error != 0 {
				out[i].Err = fmt.Errorf("%s: %w", kind, syscall.Errno(j.error))
			}
		})
	}
	all.Wait()
	return out
}

// Answer serves the other end of a tcp job until the other end closes its socket.
func Answer(sock int, op string, descs []Desc) error {
	write := C.int(0)
	if op == "WRITE" {
		write = 1
	}
	list := copyOf(descs)
	defer C.free(unsafe.Pointer(list))
	if e := C.lim_answer(C.int(sock), list, C.size_t(len(descs)), write); e != 0 {
		return syscall.Errno(e)
	}
	return nil
}

// Poll starts a thread that does the work of a polling target, for at most limit. It naps less than a second between
// polls. The load on the host thus equals that of a backend's target. stop ends the thread and waits for its end.
func Poll(limit, nap time.Duration) (stop func()) {
	flag, done := (*C.int)(C.calloc(1, C.sizeof_int)), make(chan struct{})
	go func() {
		defer close(done)
		C.lim_poll(flag, C.int64_t(limit), C.int64_t(nap))
	}()
	return func() {
		atomic.StoreInt32((*int32)(unsafe.Pointer(flag)), 1)
		<-done
		C.free(unsafe.Pointer(flag))
	}
}

// copyOf copies a list to C memory.
func copyOf(d []Desc) *C.lim_desc {
	list := (*C.lim_desc)(C.calloc(C.size_t(len(d))+1, C.sizeof_lim_desc))
	copy(unsafe.Slice((*Desc)(unsafe.Pointer(list)), len(d)), d)
	return list
}

// Allow lets other processes of this user read and write this process's memory, where Yama would refuse.
func Allow() { C.lim_allow() }
