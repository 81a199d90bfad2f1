package e2e

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// envLimit makes this process take a right away from itself before it does anything else.
const envLimit = "GORAIL_TEST_LIMIT"

// Values of envLimit.
const (
	seccomp    = "seccomp"    // no call reaches the memory of another process
	undumpable = "undumpable" // no process without CAP_SYS_PTRACE reaches this one's memory

	smallStacks     = "small stacks"     // threads have 128 KiB each
	unlimitedStacks = "unlimited stacks" // the system chooses
)

func maybeLimit() {
	var err error
	switch os.Getenv(envLimit) {
	case seccomp:
		err = filterCalls(unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PTRACE, unix.SYS_PIDFD_GETFD)
	case undumpable:
		err = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	case smallStacks:
		err = stacks(128 << 10)
	case unlimitedStacks:
		err = stacks(unix.RLIM_INFINITY)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "limit:", err)
		os.Exit(2)
	}
}

// stacks makes the process begin again with that limit: the C library reads it at the start.
func stacks(limit uint64) error {
	r := unix.Rlimit{Cur: limit, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_STACK, &r); err != nil {
		return err
	}
	os.Unsetenv(envLimit)
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// filterCalls makes system calls fail with EPERM, as the default profile of a container does. Implements seccomp(2).
func filterCalls(calls ...uint32) error {
	const allow, fail = 0x7fff0000, 0x00050000 | uint32(unix.EPERM)              // SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
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
