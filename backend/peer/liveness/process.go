package liveness

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"gorail/backend/wire"
)

// Self is this process; PID is 0 where /proc does not tell.
func Self() wire.Process {
	var ns unix.Stat_t
	start, err := startTime("self")
	if err != nil || unix.Stat("/proc/self/ns/pid", &ns) != nil {
		return wire.Process{}
	}
	return wire.Process{PID: uint32(os.Getpid()), NS: ns.Ino, Start: start}
}

// startTime is field 22 of /proc/PID/stat: clock ticks from boot to the start of the process.
func startTime(pid string) (uint64, error) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, err
	}
	const start = 22
	end := bytes.LastIndexByte(b, ')') // field 2 is the command, which may contain anything
	fields := bytes.Fields(b[end+1:])
	if end < 0 || len(fields) < start-2 {
		return 0, fmt.Errorf("/proc/%s/stat: %d fields", pid, len(fields)+2)
	}
	return strconv.ParseUint(string(fields[start-3]), 10, 64)
}

// OpenProcess opens a pidfd of a process of our pid namespace. nil without an error: it has ended.
func OpenProcess(p wire.Process) (*os.File, error) {
	fd, err := unix.PidfdOpen(int(p.PID), unix.PIDFD_NONBLOCK)
	if err == unix.ESRCH {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	start, err := startTime(strconv.Itoa(int(p.PID))) // after pidfd_open: the number may have been another process's
	if err == nil && start == p.Start {
		return f, nil
	}
	defer f.Close()
	if err == nil || exited(fd) { // without a look at /proc (option hidepid) nothing is known of one that runs
		return nil, nil
	}
	return nil, err
}

// exited says that the process of a pidfd has ended. An error says nothing of the process.
func exited(fd int) bool {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 0); err != unix.EINTR {
			return err == nil && fds[0].Revents&unix.POLLIN != 0
		}
	}
}

// AwaitExit returns true when the process of a pidfd has ended, false when the file was closed before.
func AwaitExit(pidfd *os.File) bool {
	raw, err := pidfd.SyscallConn()
	return err == nil && raw.Read(func(fd uintptr) bool { return exited(int(fd)) }) == nil
}

// Visible says that we can watch a process of a host with that boot id: it is on this host and in our pid namespace, and it is not ourselves.
func Visible(own *wire.ConnBlob, boot string, p wire.Process) bool {
	return boot != "" && boot == own.Boot && p.PID != 0 && p.NS == own.Process.NS && p != own.Process
}
