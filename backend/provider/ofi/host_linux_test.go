package ofi

import (
	"syscall"
	"unsafe"

	"gorail/test/drive"
)

// signalActions reads the kernel's record of every signal. Implements rt_sigaction.
func signalActions() (all [65][64]byte) {
	for sig := range all {
		const sigset = 8
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), 0, uintptr(unsafe.Pointer(&all[sig])), sigset, 0, 0)
	}
	return all
}

// nativeEnviron returns the C environment's values of the variables that loading sets temporarily.
func nativeEnviron() string {
	return drive.Getenv("IPATH_NO_BACKTRACE") + "|" + drive.Getenv("HFI_NO_BACKTRACE")
}
