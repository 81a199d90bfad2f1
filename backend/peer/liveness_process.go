package peer

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"gorail/backend/failpoint"
	"gorail/backend/host"
	"gorail/backend/wire"
)

// Self returns this process. PID is 0 if /proc does not give the details, or if it is that of another pid namespace, where our number names
// another process: then nobody watches us, and we watch nobody.
func Self() wire.Process {
	var ns unix.Stat_t
	start, err := startTime("self")
	if err != nil || !host.OwnProc() || unix.Stat("/proc/self/ns/pid", &ns) != nil {
		return wire.Process{}
	}
	return wire.Process{PID: uint32(os.Getpid()), NS: ns.Ino, Start: start}
}

// startTime reads field 22 of /proc/PID/stat: the start of the process, in clock ticks since boot.
func startTime(pid string) (uint64, error) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return 0, err
	}
	const start = 22
	end := bytes.LastIndexByte(b, ')') // field 2 is the command name, which may contain any bytes
	fields := bytes.Fields(b[end+1:])
	if end < 0 || len(fields) < start-2 {
		return 0, fmt.Errorf("/proc/%s/stat: %d fields", pid, len(fields)+2)
	}
	return strconv.ParseUint(string(fields[start-3]), 10, 64)
}

// openProcess opens a pidfd of a process in our pid namespace. It returns -1 without an error if the process has
// ended.
func openProcess(p wire.Process) (fd int, err error) {
	if err := failpoint.Fail("peer_pidfd"); err != nil {
		return -1, fmt.Errorf("pidfd_open: %w", err)
	}
	fd, err = unix.PidfdOpen(int(p.PID), 0)
	if err == unix.ESRCH {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("pidfd_open: %w", err)
	}
	start, err := startTime(strconv.Itoa(int(p.PID))) // after pidfd_open, because the number may have belonged to another process
	if err == nil && start == p.Start {
		return fd, nil
	}
	defer unix.Close(fd)
	if err == nil || host.ProcessEnded(fd) { // without access to /proc (option hidepid) a running process cannot be identified
		return -1, nil
	}
	return -1, err
}

// processVisible reports whether we can watch a process on a host with that boot id: the process is on this host, in our pid
// namespace, and is not our own.
func processVisible(own *wire.ConnBlob, boot string, p wire.Process) bool {
	return boot != "" && boot == own.Boot && p.PID != 0 && p.NS == own.Process.NS && p != own.Process
}
