package nixlapi

/*
#include <stdlib.h>
#include "capi.h"
#include "bench.h"
*/
import "C"

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// HistSize is the number of buckets of a Times.
const HistSize = C.GN_HIST_SIZE

// Times is a histogram of nanoseconds, see hist.h.
type Times struct {
	Sum, Max uint64
	N        []uint64 // HistSize counts
}

// HistIndex returns the bucket of a time, computed by the C code.
func HistIndex(ns uint64) int { return int(C.gn_hist_index(C.uint64_t(ns))) }

func times(h *C.gn_hist) Times {
	n := unsafe.Slice((*uint64)(unsafe.Pointer(&h.n[0])), HistSize)
	return Times{Sum: uint64(h.sum), Max: uint64(h.max), N: append([]uint64{}, n...)}
}

// BenchArgs set how a Bench posts its requests.
type BenchArgs struct {
	Warmup uint64        // posts of each thread before the clock starts
	Count  uint64        // timed posts of each thread; 0: as many as Time allows
	Time   time.Duration // how long to post
	Limit  time.Duration // give up after this time
}

// BenchOut is the result of one thread.
type BenchOut struct {
	Posted    uint64 // including those before the clock started
	Done      uint64 // timed
	Wall      time.Duration
	Status    Status // InProgress when the limit ran out
	Lat, Post Times  // of each transfer, of each post
}

// Bench posts requests repeatedly. Each list has its own thread, which keeps the whole list in flight: post, poll, post
// again after the end. Threads warm up, wait for each other and are timed in C. With more than one list the agent needs
// a sync mode.
func Bench(a *Agent, threads [][]*Xfer, in BenchArgs) []BenchOut {
	gate := (*C.int)(C.calloc(1, C.sizeof_int))
	defer C.free(ptr(gate))
	*gate = C.int(len(threads))
	out := make([]BenchOut, len(threads))
	var all sync.WaitGroup
	for i, list := range threads {
		all.Go(func() {
			b := (*C.gn_bench)(C.calloc(1, C.sizeof_gn_bench))
			defer C.free(ptr(b))
			b.req = (*ptr)(C.calloc(C.size_t(len(list)), C.sizeof_uintptr_t))
			defer C.free(ptr(b.req))
			for j, x := range list {
				unsafe.Slice(b.req, len(list))[j] = x.h
			}
			b.agent, b.depth, b.gate = a.h, C.size_t(len(list)), gate
			b.warmup, b.count = C.uint64_t(in.Warmup), C.uint64_t(in.Count)
			b.time_ns, b.limit_ns = C.int64_t(in.Time), C.int64_t(in.Limit)
			C.gn_bench_run(b)
			out[i] = BenchOut{uint64(b.posted), uint64(b.done), time.Duration(b.wall_ns), Status(b.status), times(&b.lat), times(&b.post)}
		})
	}
	all.Wait()
	return out
}

// Server polls an agent's notifications on one thread and counts them.
type Server struct {
	a    *Agent
	c    *serve
	done chan struct{}
	s    Status
}

// serve is shared with the C loop. It lives in C memory.
type serve struct {
	want, seen C.uint64_t
	stop       C.int
}

// Serve starts polling for at most limit. It naps, for less than a second, after each empty poll.
func (a *Agent) Serve(limit, nap time.Duration) *Server {
	c := (*serve)(C.calloc(1, C.size_t(unsafe.Sizeof(serve{}))))
	c.want = ^C.uint64_t(0)
	s := &Server{a: a, c: c, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.s = Status(C.gn_serve(a.h, a.notifs, &c.want, &c.stop, C.int64_t(limit), C.int64_t(nap), &c.seen))
	}()
	return s
}

// Want ends the polling when n notifications have come since the start, or after wait. It returns the number that came.
func (s *Server) Want(n uint64, wait time.Duration) (uint64, error) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&s.c.want)), n)
	select {
	case <-s.done:
	case <-time.After(wait):
		atomic.StoreInt32((*int32)(unsafe.Pointer(&s.c.stop)), 1)
		<-s.done
	}
	seen := uint64(s.c.seen)
	C.free(ptr(s.c))
	s.c = nil
	return seen, s.s.Err("get_notifs")
}

// Notify sends the same notification n times without returning to Go in between. It returns the number sent.
func (a *Agent) Notify(peer string, msg []byte, n uint64, b *Backend) (uint64, error) {
	name, m := C.CString(peer), C.CBytes(msg)
	defer C.free(ptr(name))
	defer C.free(m)
	var sent C.uint64_t
	err := withOpt(b, nil, false, func(o ptr) Status {
		return Status(C.gn_notify(a.h, name, m, C.size_t(len(msg)), o, C.uint64_t(n), &sent))
	}).Err("gen_notif")
	return uint64(sent), err
}
