package shm

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// accessHint says what forbids access to another process's memory, and what would help.
func accessHint(errno syscall.Errno) string {
	switch errno {
	case syscall.EPERM:
		switch ptraceScope() {
		case "1":
			return " (Yama's scope is 1: only an ancestor may access the memory; set option ptracer at the peer, or sysctl kernel.yama.ptrace_scope=0, or grant CAP_SYS_PTRACE)"
		case "2":
			return " (Yama's scope is 2: grant CAP_SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0)"
		case "3":
			return " (Yama's scope is 3, which forbids the access until the next boot)"
		}
		return " (the peer's user or group ids differ, the peer is not dumpable, or seccomp forbids the call: run both as one user and group, allow process_vm_readv and process_vm_writev)"
	case syscall.EACCES:
		return " (the peer runs as another user: run both as one user, or set local_peers=any-with-token at both)"
	case syscall.EOVERFLOW:
		return " (the peer's user has no id in this user namespace: map the same users in both, or set local_peers=any-with-token at both)"
	case syscall.EAGAIN:
		return " (the backlog of the peer's socket is full)"
	case syscall.ENOSYS:
		return " (seccomp forbids the call, or the kernel lacks CONFIG_CROSS_MEMORY_ATTACH)"
	case syscall.ESRCH, syscall.EBADMSG, syscall.EFAULT:
		return " (the peer has ended, or another process answers in its place)"
	}
	return ""
}

// lateCopy explains a timed-out wait for a copy: which process makes the copy, and what delays that process. who is
// the value of cma_late: process << 8 | state.
func lateCopy(who uint64) string {
	process, state := "another process", byte(who)
	switch pid := int(who >> 8); pid {
	case 0:
	case os.Getpid():
		process = "this process"
	default:
		process = fmt.Sprintf("process %d", pid)
	}
	is := "is slow: starved of CPU time, or waiting for memory (swap, userfaultfd, FUSE)"
	switch state {
	case 'T':
		is = "is stopped by a signal"
	case 't':
		is = "is stopped by a debugger"
	case 0:
		is = "may be stopped, or starved of CPU time"
	}
	return fmt.Sprintf(" (%s %s; its copy is unfinished and may still touch the memory)", process, is)
}

// ptraceScope is Yama's ptrace_scope; "" without Yama.
func ptraceScope() string {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
