package nixlapi

/*
#include <stdlib.h>
#include "capi.h"
#include "bench.h"
#include "turns.h"
*/
import "C"

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
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
	Start  time.Duration // a time of CLOCK_MONOTONIC before which no clock starts
}

// BenchOut is the result of one thread.
type BenchOut struct {
	Posted    uint64        // including those before the clock started
	Posts     []uint64      // of each request or Blocks; their sum is Posted
	Done      uint64        // timed
	Began     time.Duration // the time of CLOCK_MONOTONIC when the clock started
	Wall, Gap time.Duration // Gap: the longest time without a completion
	Status    Status        // InProgress when the limit ran out
	Lat, Post Times         // of each transfer from its post on, of each post
	Make      Times         // of each make_xfer_req; only of Blocks
}

// Blocks is a request that is made anew before each post, over prepared lists, as inference engines do. The posts take the sets of
// ids in turn.
type Blocks struct {
	Op                  Op
	Local, Remote       *Dlist
	N                   int     // blocks of a request
	LocalIDs, RemoteIDs []int32 // sets of N, one after the other
	Opts                XferOpts
}

// Work is what one thread keeps in flight: requests, or blocks, all of one agent.
type Work struct {
	Xfers  []*Xfer
	Blocks []Blocks
}

// Bench posts requests repeatedly. Each Work has its own thread, which keeps all of it in flight: post, poll, post again after the
// end. Threads warm up, wait for each other and are timed in C. An agent of more than one thread needs a sync mode.
func Bench(threads []Work, in BenchArgs) []BenchOut {
	gate := (*C.int)(C.calloc(1, C.sizeof_int))
	defer C.free(ptr(gate))
	*gate = C.int(len(threads))
	out := make([]BenchOut, len(threads))
	var all sync.WaitGroup
	for i, w := range threads {
		all.Go(func() { out[i] = w.run(gate, in) })
	}
	all.Wait()
	return out
}

// run is one thread.
func (w Work) run(gate *C.int, in BenchArgs) BenchOut {
	b := (*C.gn_bench)(C.calloc(1, C.sizeof_gn_bench))
	defer C.free(ptr(b))
	depth := len(w.Xfers) + len(w.Blocks)
	b.req = (*ptr)(C.calloc(C.size_t(depth), C.sizeof_uintptr_t))
	defer C.free(ptr(b.req))
	b.posts = (*C.uint64_t)(C.calloc(C.size_t(depth)+1, C.sizeof_uint64_t))
	defer C.free(ptr(b.posts))
	for j, x := range w.Xfers {
		unsafe.Slice(b.req, depth)[j], b.agent = x.h, x.a.h
	}
	if len(w.Blocks) > 0 {
		list, free, s := cBlocks(w.Blocks)
		defer free()
		if s != Success {
			atomic.AddInt32((*int32)(ptr(gate)), -1) // the others do not wait for this thread
			return BenchOut{Status: s}
		}
		b.blocks, b.agent = list, w.Blocks[0].Local.a.h
	}
	b.depth, b.gate, b.start_ns = C.size_t(depth), gate, C.int64_t(in.Start)
	b.warmup, b.count = C.uint64_t(in.Warmup), C.uint64_t(in.Count)
	b.time_ns, b.limit_ns = C.int64_t(in.Time), C.int64_t(in.Limit)
	C.gn_bench_run(b)
	posts := append([]uint64{}, unsafe.Slice((*uint64)(ptr(b.posts)), depth)...)
	return BenchOut{Posted: uint64(b.posted), Posts: posts, Done: uint64(b.done), Began: time.Duration(b.began_ns), Wall: time.Duration(b.wall_ns), Gap: time.Duration(b.gap_ns), Status: Status(b.status),
		Lat: times(&b.lat), Post: times(&b.post), Make: times(&b.make)}
}

// cBlocks copies a list to C memory. The caller calls free after its use, also after an error.
func cBlocks(list []Blocks) (out *C.gn_blocks, free func(), s Status) {
	out = (*C.gn_blocks)(C.calloc(C.size_t(len(list)), C.sizeof_gn_blocks))
	all := unsafe.Slice(out, len(list))
	free = func() {
		for i := range all {
			C.free(ptr(all[i].local_ids))
			C.free(ptr(all[i].remote_ids))
			if all[i].opt != nil {
				cDestroyOpt(all[i].opt)
			}
		}
		C.free(ptr(out))
	}
	for i, k := range list {
		c := &all[i]
		c.op, c.local, c.remote = C.int(k.Op), k.Local.h, k.Remote.h
		c.local_ids, c.remote_ids = cInts(k.LocalIDs), cInts(k.RemoteIDs)
		c.n, c.sets = C.size_t(k.N), C.size_t(len(k.LocalIDs)/k.N)
		if c.opt, s = cOpt(k.Opts.Backend.handle(), k.Opts.Notif, k.Opts.NoMerge); s != Success {
			return out, free, s
		}
	}
	return out, free, Success
}

// cInts copies numbers to C memory.
func cInts(v []int32) *C.int {
	c := (*C.int)(C.calloc(C.size_t(len(v))+1, C.sizeof_int))
	copy(unsafe.Slice((*int32)(ptr(c)), len(v)), v)
	return c
}

// Server polls agents' notifications on one thread and counts them.
type Server struct {
	c    *serve
	done chan struct{}
	s    Status
}

// serve is shared with the C loop. It lives in C memory.
type serve struct {
	want, seen C.uint64_t
	stop       C.int
}

// Serve starts polling agents in turn for at most limit. It naps, for less than a second, after each round without notifications.
func Serve(agents []*Agent, limit, nap time.Duration) *Server {
	c := (*serve)(C.calloc(1, C.size_t(unsafe.Sizeof(serve{}))))
	c.want = ^C.uint64_t(0)
	s := &Server{c: c, done: make(chan struct{})}
	n := len(agents)
	handles := (*ptr)(C.calloc(C.size_t(2*n)+1, C.sizeof_uintptr_t))
	list := unsafe.Slice(handles, 2*n)
	for i, a := range agents {
		list[i], list[n+i] = a.h, a.notifs
	}
	go func() {
		defer close(s.done)
		defer C.free(ptr(handles))
		maps := (*ptr)(unsafe.Add(ptr(handles), n*C.sizeof_uintptr_t))
		s.s = Status(C.gn_serve(handles, maps, C.size_t(n), &c.want, &c.stop, C.int64_t(limit), C.int64_t(nap), &c.seen))
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

// Turns posts all requests of one agent right after each other, waits for all, and begins again for a time. post has the time of each post
// by itself, turn that of all of them with their ends.
func Turns(all []*Xfer, d, limit time.Duration) (post, turn Times, s Status) {
	h := (*[2]C.gn_hist)(C.calloc(2, C.sizeof_gn_hist))
	defer C.free(ptr(h))
	list := (*ptr)(C.calloc(C.size_t(len(all)), C.sizeof_uintptr_t))
	defer C.free(ptr(list))
	for i, x := range all {
		unsafe.Slice(list, len(all))[i] = x.h
	}
	s = Status(C.gn_turns(all[0].a.h, list, C.size_t(len(all)), C.int64_t(d), C.int64_t(limit), &h[0], &h[1]))
	return times(&h[0]), times(&h[1]), s
}

// Copy copies ranges of this process's host memory by memcpy, again and again until a time of CLOCK_MONOTONIC, but once at least. It returns
// how often.
func Copy(to, from []Desc, end time.Duration) uint64 {
	return uint64(C.gn_copy((*C.gn_desc)(ptr(unsafe.SliceData(to))), (*C.gn_desc)(ptr(unsafe.SliceData(from))), C.size_t(len(to)), C.int64_t(end)))
}

// ReadProcess reads ranges of another process by process_vm_readv, a call for each, in some turns. It returns the time of each call.
func ReadProcess(pid int, to, from []Desc, turns uint64) (Times, error) {
	h := (*C.gn_hist)(C.calloc(1, C.sizeof_gn_hist))
	defer C.free(ptr(h))
	e := C.gn_vm_read(C.pid_t(pid), (*C.gn_desc)(ptr(unsafe.SliceData(to))), (*C.gn_desc)(ptr(unsafe.SliceData(from))), C.size_t(len(to)), C.uint64_t(turns), h)
	if e != 0 {
		return Times{}, os.NewSyscallError("process_vm_readv", syscall.Errno(e))
	}
	return times(h), nil
}
