package ipc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gorail/backend/failpoint"
)

// The kernel identifies the process at the other end of a connected socket, as of connect() and listen(). Claims of
// the peer do not count. Neither do SCM_CREDENTIALS: root of a pid namespace may write any process number there.

// noPeerPIDFD makes Identify work as on Linux before 6.5. Tests set it.
var noPeerPIDFD bool

// Checking is the step name of CheckUser and Identify in errors.
const Checking = "check of the peer's user and process"

// CheckUser returns the process that connected, or that listened, at the socket's other end. The process must run as
// our user and have a number in our pid namespace. EACCES: another user. EOVERFLOW: our user's id may stand for other
// users, too. ENOTSUP: another pid namespace. Implements SO_PEERCRED.
func (c *Conn) CheckUser() (pid int, err error) {
	e := c.raw.Control(func(fd uintptr) { pid, err = checkUser(int(fd)) })
	if e != nil {
		return 0, e
	}
	return pid, err
}

func checkUser(sock int) (pid int, err error) {
	who, err := unix.GetsockoptUcred(sock, unix.SOL_SOCKET, unix.SO_PEERCRED)
	switch {
	case err != nil:
		return 0, err
	case who.Uid != uint32(unix.Geteuid()):
		return 0, unix.EACCES
	case ambiguous(who.Uid):
		return 0, unix.EOVERFLOW
	case who.Pid <= 0: // a process of another pid namespace, without a number in ours
		return 0, unix.ENOTSUP
	}
	return int(who.Pid), nil
}

// ambiguous reports that a user id may stand for several users: all users that are not mapped in this user namespace
// show the overflow id.
func ambiguous(uid uint32) bool {
	overflow := uint32(65534)
	if b, err := os.ReadFile("/proc/sys/kernel/overflowuid"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32); err == nil {
			overflow = uint32(n)
		}
	}
	if uid != overflow {
		return false
	}
	var inner, outer, n uint32
	if b, err := os.ReadFile("/proc/self/uid_map"); err == nil {
		if _, err := fmt.Fscan(bytes.NewReader(b), &inner, &outer, &n); err != nil {
			n = 0
		}
	}
	return n != ^uint32(0) // a full map: every user has an id of its own here
}

// OwnProc reports that /proc shows our own pid namespace. Process numbers of another namespace name other processes.
func OwnProc() bool {
	self, err := os.Readlink("/proc/self")
	return err == nil && self == strconv.Itoa(os.Getpid())
}

// Ticks is the time since boot in the unit of process start times: hundredths of a second.
func Ticks() uint64 {
	const hz = 100 // USER_HZ of all architectures that Go supports
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return uint64(t.Sec)*hz + uint64(t.Nsec)*hz/1e9
}

// started is the start time of a process.
func started(pid int) (ticks uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if errno := Errno(err); errno != unix.ENOENT {
			return 0, errno
		}
		return 0, unix.ESRCH
	}
	const field = 22 - 3                                           // counted after the process name
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // the process name may contain any character
	if len(f) <= field {
		return 0, unix.ESRCH
	}
	if ticks, err = strconv.ParseUint(f[field], 10, 64); err != nil {
		return 0, unix.ESRCH
	}
	return ticks, nil
}

// Ended reports that the process of a pidfd has ended.
func Ended(pidfd int) bool { return readable(pidfd) }

// Identify is CheckUser and returns a pidfd of the process, too, which the caller closes. No other process gets the
// number while this one lives. since: a Ticks value at which the connection existed. ESRCH: the process has ended.
// EXDEV: the check needs a /proc of our pid namespace. Implements SO_PEERPIDFD.
func (c *Conn) Identify(since uint64) (pid, pidfd int, err error) { return c.identify(since, false) }

// identify implements Identify. closed: the other end may have closed the connection. Before Linux 6.5 another process may
// then have the number, so what that process shows must prove who it is.
func (c *Conn) identify(since uint64, closed bool) (pid, pidfd int, err error) {
	pidfd = -1
	if e := c.raw.Control(func(fd uintptr) { pid, pidfd, err = identify(int(fd), since, closed) }); e != nil {
		return 0, -1, e
	}
	return pid, pidfd, err
}

func identify(sock int, since uint64, closed bool) (pid, pidfd int, err error) {
	if pid, err = checkUser(sock); err != nil {
		return 0, -1, err
	}
	if err := failpoint.Fail("shm_pidfd"); err != nil {
		return pid, -1, err
	}
	if !noPeerPIDFD {
		fd, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		switch err {
		case nil:
			return pid, fd, nil
		case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ESRCH:
			return pid, -1, err
		}
	}
	pidfd, err = identifyByNumber(sock, pid, since, closed)
	return pid, pidfd, err
}

// identifyByNumber is Identify before Linux 6.5. By now another process may have the number. It has not, if the
// socket's other end is still open and the process started before the connection. One case escapes: the peer has
// ended, its children keep the socket open, and another process has taken its number.
func identifyByNumber(sock, pid int, since uint64, closed bool) (pidfd int, err error) {
	if !OwnProc() {
		return -1, unix.EXDEV
	}
	before, err := started(pid)
	if err != nil {
		return -1, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, err
	}
	if err := checkSameProcess(sock, pid, fd, before, since, closed); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func checkSameProcess(sock, pid, pidfd int, before, since uint64, closed bool) error {
	again, err := checkUser(sock)
	if err != nil {
		return err
	}
	after, err := started(pid)
	switch {
	case again != pid:
		return unix.ESRCH
	case err != nil:
		return err
	case after != before || after > since:
		return unix.ESRCH
	}
	p := []unix.PollFd{{Fd: int32(sock)}}
	if n, _ := unix.Poll(p, 0); n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0 {
		if Ended(pidfd) {
			return unix.ESRCH
		}
		if !closed {
			return unix.ECONNRESET
		}
	}
	return nil
}
