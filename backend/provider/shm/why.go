package shm

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// why says what forbids a process to touch another's memory, and what would help.
func why(errno syscall.Errno) string {
	switch errno {
	case syscall.EPERM:
		switch scope() {
		case "1":
			return " (Yama's scope is 1: only ancestors may; set option ptracer at the peer, or sysctl kernel.yama.ptrace_scope=0, or give CAP_SYS_PTRACE)"
		case "2":
			return " (Yama's scope is 2: give CAP_SYS_PTRACE, or sysctl kernel.yama.ptrace_scope=0)"
		case "3":
			return " (Yama's scope is 3, for good until the next boot: nobody may)"
		}
		return " (its user or group ids differ, it may not be dumped, or seccomp: run both as one user and group, allow process_vm_readv and process_vm_writev)"
	case syscall.EACCES:
		return " (the peer runs as another user: run both as one user)"
	case syscall.EOVERFLOW:
		return " (this user has no number of its own in this user namespace: map it there)"
	case syscall.ENOTSUP:
		return " (it lives in another pid namespace, and has no number in this one)"
	case syscall.EXDEV:
		return " (before Linux 6.5 that wants a /proc of our own pid namespace: mount it)"
	case syscall.EAGAIN:
		return " (the queue of its socket is full of connections)"
	case syscall.ENOSYS:
		return " (seccomp, or a kernel without CONFIG_CROSS_MEMORY_ATTACH)"
	case syscall.ESRCH, syscall.EBADMSG, syscall.EFAULT:
		return " (it has ended, or is another process)"
	}
	return ""
}

// late says of a copy that was waited for in vain who makes it and what keeps it, as cma_late has it.
func late(who uint64) string {
	process, state := "another process", byte(who)
	switch pid := int(who >> 8); pid {
	case 0:
	case os.Getpid():
		process = "this process"
	default:
		process = fmt.Sprintf("process %d", pid)
	}
	is := "is slow: it may be starved of CPU time, or its memory be waited for (swap, userfaultfd, FUSE)"
	switch state {
	case 'T':
		is = "is stopped by a signal"
	case 't':
		is = "is stopped by a debugger"
	case 0:
		is = "may be stopped, or starved of CPU time"
	}
	return fmt.Sprintf(" (%s %s, in the middle of a copy; until that is over, it may still touch the memory)", process, is)
}

// scope is Yama's, "" where there is none.
func scope() string {
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
