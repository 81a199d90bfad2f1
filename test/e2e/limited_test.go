package e2e

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"gorail/test/worker"
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
		err = worker.FilterCalls(unix.EPERM, worker.OthersMemory...)
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
