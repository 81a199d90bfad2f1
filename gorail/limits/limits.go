// Package limits times copies that no backend can beat: within a process, by process_vm_readv and process_vm_writev between processes, and
// over a plain TCP connection whose ends spin.
package limits

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gorail/gorail/measure"
)

// Desc is a range of this process, and where it is copied to or from.
type Desc struct {
	Local  []byte
	Remote []byte  // memcpy: the other range
	At     uintptr // process_vm: the address of the other range in the other process
}

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

// Run copies repeatedly, one thread per job, all timed together. kind is one of measure.Limits.
func Run(kind, op string, pid int, jobs []Job, pace measure.Pace) []Out {
	var gate atomic.Int64
	gate.Store(int64(len(jobs)))
	pace.Count /= uint64(len(jobs))
	out := make([]Out, len(jobs))
	var all sync.WaitGroup
	for i, job := range jobs {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if out[i].run(copier(kind, op == "WRITE", pid, job), &gate, pace); out[i].Err != nil {
				out[i].Err = fmt.Errorf("%s: %w", kind, out[i].Err)
			}
		})
	}
	all.Wait()
	return out
}

// run times one thread: first those of the warm-up, then, with the other threads, those that count.
func (o *Out) run(once func() error, gate *atomic.Int64, pace measure.Pace) {
	end := time.Now().Add(pace.Limit)
	for ; o.Posted < pace.Warmup && o.Err == nil && time.Now().Before(end); o.Posted++ {
		o.Err = once()
	}
	for gate.Add(-1); gate.Load() > 0 && time.Now().Before(end); {
		runtime.Gosched()
	}
	start := time.Now()
	o.Began = measure.Now()
	until := end
	if pace.Count == 0 {
		until = start.Add(pace.Time)
	}
	now := start
	for o.Err == nil && now.Before(until) && now.Before(end) && (pace.Count == 0 || o.Done < pace.Count) {
		o.Err = once()
		was := now
		now = time.Now()
		o.Lat.Record(now.Sub(was))
		o.Done++
	}
	o.Posted += o.Done
	o.Wall = now.Sub(start)
	if o.Err == nil && !now.Before(end) {
		o.Err = unix.ETIMEDOUT
	}
}

// copier returns the function that copies a job once.
func copier(kind string, write bool, pid int, j Job) func() error {
	switch kind {
	case "memcpy":
		return func() error {
			for _, d := range j.Descs {
				if write {
					copy(d.Remote, d.Local)
				} else {
					copy(d.Local, d.Remote)
				}
			}
			return nil
		}
	case "process_vm":
		return processVM(write, pid, j.Descs)
	}
	list, word := locals(j.Descs), [][]byte{make([]byte, wordSize)}
	return func() error { // a WRITE is its bytes and an answer, a READ is a question and its bytes
		first, second := word, list
		if write {
			first, second = list, word
		}
		if err := all(j.Sock, first, true); err != nil {
			return err
		}
		return all(j.Sock, second, false)
	}
}

func locals(list []Desc) (out [][]byte) {
	for _, d := range list {
		out = append(out, d.Local)
	}
	return out
}

const (
	iovs     = 1024    // of a call: UIO_MAXIOV
	piece    = 1 << 30 // a call moves less than 2 GiB
	wordSize = 16      // bytes of an answer, and of a question
)

// processVM returns the function that makes the calls for a list.
func processVM(write bool, pid int, list []Desc) func() error {
	type call struct {
		local  []unix.Iovec
		remote []unix.RemoteIovec
		bytes  int
	}
	var calls []call
	for _, d := range list {
		for at := d.At; len(d.Local) > 0; {
			if n := len(calls); n == 0 || len(calls[n-1].local) == iovs || calls[n-1].bytes == piece {
				calls = append(calls, call{})
			}
			c := &calls[len(calls)-1]
			n := min(len(d.Local), piece-c.bytes)
			v := unix.Iovec{Base: &d.Local[0]}
			v.SetLen(n)
			c.local, c.remote, c.bytes = append(c.local, v), append(c.remote, unix.RemoteIovec{Base: at, Len: n}), c.bytes+n
			d.Local, at = d.Local[n:], at+uintptr(n)
		}
	}
	move := unix.ProcessVMReadv
	if write {
		move = unix.ProcessVMWritev
	}
	return func() error {
		for i := range calls {
			n, err := move(pid, calls[i].local, calls[i].remote, 0)
			if err == nil && n != calls[i].bytes {
				err = unix.EFAULT
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// all sends or receives a whole list. It spins: a halted processor takes longer to wake than a small transfer takes.
func all(fd int, list [][]byte, out bool) error {
	for list = slices.Clone(list); len(list) > 0; {
		batch := list[:min(len(list), iovs)]
		var n int
		var err error
		if out {
			n, err = unix.SendmsgBuffers(fd, batch, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		} else {
			n, _, _, _, err = unix.RecvmsgBuffers(fd, batch, nil, unix.MSG_DONTWAIT)
		}
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return unix.ECONNRESET
		}
		for len(list) > 0 && n >= len(list[0]) {
			n, list = n-len(list[0]), list[1:]
		}
		if len(list) > 0 {
			list[0] = list[0][n:]
		}
	}
	return nil
}

// spin is how long the target spins between transfers, before it sleeps.
const spin = 20 * time.Millisecond

// Answer serves the other end of a tcp job until the other end closes its socket.
func Answer(sock int, op string, descs []Desc) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	first, second := [][]byte{make([]byte, wordSize)}, locals(descs)
	if op == "WRITE" {
		first, second = second, first
	}
	for {
		if there, err := await(sock); !there || err != nil {
			return err
		}
		if err := all(sock, first, false); err != nil {
			return err
		}
		if err := all(sock, second, true); err != nil {
			return err
		}
	}
}

// await waits until the next transfer begins; false: the other end has closed the socket.
func await(sock int) (bool, error) {
	var b [1]byte
	for until := time.Now().Add(spin); ; {
		n, _, err := unix.Recvfrom(sock, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == nil:
			return n > 0, nil
		case err != unix.EAGAIN && err != unix.EINTR:
			return false, err
		case time.Now().After(until):
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(sock), Events: unix.POLLIN}}, -1)
		}
	}
}

// Poll starts a thread that does the work of a polling target, for at most limit: the load on the host thus equals that of a backend's
// target. It naps between polls. stop ends the thread and waits for its end.
func Poll(limit, nap time.Duration) (stop func()) {
	var flag atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for end := time.Now().Add(limit); !flag.Load() && time.Now().Before(end); {
			if nap > 0 {
				time.Sleep(nap)
			}
		}
	}()
	return func() {
		flag.Store(true)
		<-done
	}
}

// Allow lets other processes of this user read and write this process's memory, where Yama would refuse.
func Allow() {
	_ = unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0) // fails without Yama, where it is not needed
}
