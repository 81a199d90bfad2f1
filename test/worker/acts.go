package worker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ActArgs names what the worker's process does, as hosts do. The agent's thread does it, or all threads, as the act needs.
type ActArgs struct {
	Agent int // negative: before there is one
	Name  string
	Times int    // of acts beside transfers. Such an act is not the agent's thread's.
	Dir   string // an empty folder
}

// Acts are the names of acts.
const (
	Setuid        = "setuid"
	NotDumpable   = "not dumpable"
	NoNewPrivs    = "no new privileges"
	Mlockall      = "mlockall"
	OneCPU        = "one CPU"
	FIFO          = "SCHED_FIFO"
	Chroot        = "chroot"
	OtherNet      = "another network namespace"
	NoFDs         = "no free descriptors"
	NoMemlock     = "RLIMIT_MEMLOCK 0"
	ShortThreads  = "short-lived threads"
	Spawns        = "spawns"
	Setenvs       = "setenv in two threads"
	Seccomp       = "seccomp"
	SeccompAccess = "seccomp, EACCES"
	SeccompNoCall = "seccomp, ENOSYS"
	MainEnds      = "first thread ends"
)

// Nobody is the user that a process becomes by Setuid.
const Nobody = 65534

var acts = map[string]func(in ActArgs) error{
	Setuid: func(ActArgs) error {
		return errors.Join(unix.Setgroups(nil), unix.Setgid(Nobody), unix.Setuid(Nobody))
	},
	NotDumpable:  func(ActArgs) error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) },
	NoNewPrivs:   func(ActArgs) error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) },
	Mlockall:     func(ActArgs) error { return unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE) },
	OneCPU:       func(ActArgs) error { return eachThread(pin) },
	FIFO:         func(ActArgs) error { return eachThread(fifo) },
	Chroot:       func(in ActArgs) error { return errors.Join(unix.Chroot(in.Dir), unix.Chdir("/")) },
	OtherNet:     func(ActArgs) error { return unix.Unshare(unix.CLONE_NEWNET) },
	NoFDs:        func(ActArgs) error { return takeFDs() },
	NoMemlock:    func(ActArgs) error { return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{}) },
	ShortThreads: repeatedly(shortThread),
	Spawns:       repeatedly(spawn),
	Setenvs:      setenvs,
	Seccomp: func(ActArgs) error {
		return FilterCalls(unix.EPERM, append(slices.Clone(OthersMemory), unix.SYS_PIDFD_OPEN, unix.SYS_MEMFD_CREATE)...)
	},
	SeccompAccess: func(ActArgs) error { return FilterCalls(unix.EACCES, OthersMemory...) },
	SeccompNoCall: func(ActArgs) error { return FilterCalls(unix.ENOSYS, OthersMemory...) },
	MainEnds:      func(ActArgs) error { close(mainEnds); return zombieLeader() },
}

// Act does what hosts of the plugin do.
func (s *Server) Act(in ActArgs, out *ErrOut) error {
	f := acts[in.Name]
	if f == nil {
		return fmt.Errorf("no act %q", in.Name)
	}
	if in.Times > 0 || in.Agent < 0 {
		return f(in)
	}
	g, err := s.agent(in.Agent)
	if err != nil {
		return err
	}
	g.do(func() { err = f(in) })
	return err
}

// Act does what hosts of the plugin do, on the agent's thread.
func (a *Agent) Act(in ActArgs) error {
	a.t.Helper()
	in.Agent = a.id
	_, err := async[ErrOut](a.Worker, "Act", in, Deadline).Result()
	return err
}

// ActAsync begins an act.
func (a *Agent) ActAsync(in ActArgs) *Future[ErrOut] {
	in.Agent = a.id
	return async[ErrOut](a.Worker, "Act", in, 2*Deadline)
}

// Act does what hosts do before they make an agent.
func (w *Worker) Act(in ActArgs) error {
	w.t.Helper()
	in.Agent = -1
	_, err := async[ErrOut](w, "Act", in, Deadline).Result()
	return err
}

// zombieLeader waits until the first thread has ended.
func zombieLeader() error {
	name := fmt.Sprintf("/proc/self/task/%d/stat", os.Getpid())
	for end := time.Now().Add(Deadline); ; time.Sleep(time.Millisecond) {
		text, err := os.ReadFile(name)
		if err != nil || bytes.Contains(text, []byte(") Z ")) {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("the first thread lives: %s", text)
		}
	}
}

// eachThread calls f with each thread of the process.
func eachThread(f func(tid int) error) error {
	list, err := filepath.Glob("/proc/self/task/*")
	for _, name := range list {
		tid, _ := strconv.Atoi(filepath.Base(name))
		if e := f(tid); !errors.Is(e, unix.ESRCH) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func pin(tid int) error {
	var set, now unix.CPUSet
	if err := unix.SchedGetaffinity(0, &now); err != nil {
		return err
	}
	for cpu := 0; cpu < 8*int(unsafe.Sizeof(now)); cpu++ {
		if now.IsSet(cpu) {
			set.Set(cpu)
			break
		}
	}
	return unix.SchedSetaffinity(tid, &set)
}

// fifo implements sched_setscheduler.
func fifo(tid int) error {
	priority := int32(1)
	if _, _, errno := unix.RawSyscall(unix.SYS_SCHED_SETSCHEDULER, uintptr(tid), 1 /* SCHED_FIFO */, uintptr(unsafe.Pointer(&priority))); errno != 0 {
		return errno
	}
	return nil
}

// takeFDs leaves the process no descriptor.
func takeFDs() error {
	limit := unix.Rlimit{Cur: 512, Max: 512}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	for {
		_, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		switch {
		case errors.Is(err, unix.EMFILE):
			return nil
		case err != nil:
			return err
		}
	}
}

func repeatedly(f func() error) func(in ActArgs) error {
	return func(in ActArgs) error {
		for range in.Times {
			if err := f(); err != nil {
				return err
			}
		}
		return nil
	}
}

// shortThread runs a thread that ends at once.
func shortThread() error {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
		close(done)
	}()
	<-done
	return nil
}

func spawn() error { return exec.Command("true").Run() }

func setenvs(in ActArgs) error {
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			for n := range in.Times {
				_ = os.Setenv(fmt.Sprintf("GORAIL_TEST_%d_%d", i, n%1000), strconv.Itoa(n)) // setenv of C, too, in a program with cgo
			}
		})
	}
	wg.Wait()
	return nil
}

// OthersMemory are the system calls that reach other processes' memory.
var OthersMemory = []uint32{unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PTRACE, unix.SYS_PIDFD_GETFD}

// FilterCalls makes system calls fail, as the default profile of a container does, in all threads. Implements seccomp(2).
func FilterCalls(errno unix.Errno, calls ...uint32) error {
	allow, fail := uint32(0x7fff0000), 0x00050000|uint32(errno)                  // SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}} // the call's number
	for i, call := range calls {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: call, Jt: uint8(len(calls) - i)})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET, K: allow}, unix.SockFilter{Code: unix.BPF_RET, K: fail})
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	const setFilter, allThreads = 1, 1 // SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, setFilter, allThreads, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return errno
	}
	return nil
}
