package libfabric

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Environment variables that stop libraries from installing signal handlers. Debian's libfabric needs libinfinipath.
// Its constructor replaces the handlers of SEGV, BUS, ABRT, INT and TERM without SA_ONSTACK, unless IPATH_NO_BACKTRACE
// is set. Such a handler kills a Go or Java program at its next fault. libpsm2 and psm3 behave alike with
// HFI_NO_BACKTRACE.
var noBacktraceVars = [...]string{"IPATH_NO_BACKTRACE", "HFI_NO_BACKTRACE"}

const signals = 64

// action is the kernel's record of a signal, with the restorer; larger than on any architecture.
type action [64]byte

// guardMu is held while the environment differs.
var guardMu sync.Mutex

// guarded runs f, which loads libfabric and its dependencies, and keeps the host process unchanged. The variables are
// set only during f. Signal actions that still changed are restored.
func guarded(f func()) {
	guardMu.Lock()
	defer guardMu.Unlock()
	for _, name := range noBacktraceVars {
		if !getenv(name) && setenv(name, "1") {
			defer unsetenv(name)
		}
	}
	var before [signals + 1]action
	var known [signals + 1]bool
	for sig := 1; sig <= signals; sig++ {
		known[sig] = sigaction(sig, nil, &before[sig])
	}
	defer func() {
		for sig := 1; sig <= signals; sig++ {
			var now action
			if known[sig] && sigaction(sig, nil, &now) && now != before[sig] {
				sigaction(sig, &before[sig], nil)
			}
		}
	}()
	f()
}

// sigaction implements rt_sigaction by the raw call, because the C library's function hides the restorer.
func sigaction(sig int, set, old *action) bool {
	const sigset = 8
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), sigset, 0, 0)
	return e == 0
}
