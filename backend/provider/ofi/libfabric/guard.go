package libfabric

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Debian's libfabric needs libinfinipath, whose constructor replaces the handlers of SEGV, BUS, ABRT, INT and TERM
// (without SA_ONSTACK, which kills a Go or Java program at its next fault) unless IPATH_NO_BACKTRACE is set; libpsm2 and
// psm3 do alike with HFI_NO_BACKTRACE.
var quiet = [...]string{"IPATH_NO_BACKTRACE", "HFI_NO_BACKTRACE"}

const signals = 64

// action is the kernel's record of a signal, restorer included: longer than any.
type action [64]byte

// guardMu is held while the environment differs.
var guardMu sync.Mutex

// guarded keeps the host process as it was while f loads libfabric and what it drags in. The variables are set only
// meanwhile, and what changed of the signals all the same is put back.
func guarded(f func()) {
	guardMu.Lock()
	defer guardMu.Unlock()
	for _, name := range quiet {
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

// sigaction implements rt_sigaction by the raw call: the C library's hides the restorer.
func sigaction(sig int, set, old *action) bool {
	const sigset = 8
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), sigset, 0, 0)
	return e == 0
}
