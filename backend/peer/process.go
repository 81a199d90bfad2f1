package peer

import (
	"bytes"
	"context"
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

// openProcess opens a pidfd of a process of our pid namespace. nil without an error: it has ended.
func openProcess(p wire.Process) (*os.File, error) {
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

// awaitExit returns true when the process of a pidfd has ended, false when the file was closed before.
func awaitExit(pidfd *os.File) bool {
	raw, err := pidfd.SyscallConn()
	return err == nil && raw.Read(func(fd uintptr) bool { return exited(int(fd)) }) == nil
}

// visible says that we can watch a process: it is on this host and in our pid namespace, and it is not ourselves.
func (n *Node) visible(boot string, p wire.Process) bool {
	own := &n.cfg.Identity
	return boot != "" && boot == own.Boot && p.PID != 0 && p.NS == own.Process.NS && p != own.Process
}

// watchProcess ends the session as soon as the peer's process ends. A child of that process may hold its sockets open, so
// the connection does not always tell. Returns at once; the watch ends with the session.
func (s *session) watchProcess(boot string, p wire.Process) {
	if !s.node.visible(boot, p) {
		return
	}
	pidfd, err := openProcess(p)
	if err != nil {
		s.node.cfg.Log.Debug("process of a peer not watched", "peer", s.peer, "pid", p.PID, "err", err)
		return
	}
	if pidfd == nil {
		s.processEnded(p)
		return
	}
	s.mu.Lock()
	s.running = true
	s.mu.Unlock()
	context.AfterFunc(s.ctx, func() { pidfd.Close() })
	if !s.node.spawn(func() {
		if awaitExit(pidfd) {
			s.processEnded(p)
		}
	}) {
		pidfd.Close()
	}
}

func (s *session) processEnded(p wire.Process) {
	s.mu.Lock()
	s.running = false
	s.mu.Unlock()
	s.end(Lost, dead(fmt.Errorf("%w: %s: its process (pid %d) has ended", ErrDropped, s.peer, p.PID)), nil)
}
