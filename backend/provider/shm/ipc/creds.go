package ipc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Who is at the other end of a connected socket the kernel says, as of connect() and listen(). What a peer writes counts for nothing,
// SCM_CREDENTIALS included: root of a pid namespace writes there what it likes.

// noPeerPIDFD makes Identify do as on Linux before 6.5. For tests.
var noPeerPIDFD bool

// Checking names the step of CheckUser and Identify in messages.
const Checking = "checking the peer's user and process"

// CheckUser is the process at the socket's other end, or that listened there, if that is of our user and has a number here. EACCES: it is of
// another user, EOVERFLOW: of one that has no number here, maybe, ENOTSUP: in another pid namespace. Implements SO_PEERCRED.
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
	case who.Pid <= 0: // it lives in a pid namespace that has no number for it here
		return 0, unix.ENOTSUP
	}
	return int(who.Pid), nil
}

// ambiguous says whether this number could stand for others: users without a number in this user namespace all look like one.
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
	return n != ^uint32(0) // else all users have numbers here: this one is nobody else
}

// OwnProc says whether /proc is of our own pid namespace: the numbers in another's are other processes'.
func OwnProc() bool {
	self, err := os.Readlink("/proc/self")
	return err == nil && self == strconv.Itoa(os.Getpid())
}

// Ticks is the time as processes' start times are told, in hundredths of a second since the boot.
func Ticks() uint64 {
	const hz = 100 // USER_HZ of all that Go runs on
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return uint64(t.Sec)*hz + uint64(t.Nsec)*hz/1e9
}

// started is when the process of that number began.
func started(pid int) (ticks uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if errno := Errno(err); errno != unix.ENOENT {
			return 0, errno
		}
		return 0, unix.ESRCH
	}
	const field = 22 - 3                                           // behind the name
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // its name may have anything in it
	if len(f) <= field {
		return 0, unix.ESRCH
	}
	if ticks, err = strconv.ParseUint(f[field], 10, 64); err != nil {
		return 0, unix.ESRCH
	}
	return ticks, nil
}

// Ended says whether the process has.
func Ended(pidfd int) bool { return readable(pidfd) }

// Identify is CheckUser and a descriptor of the process, the caller's to close: its number is no other's as long as that has not ended. since:
// Ticks when the connection was there at the latest. ESRCH: it has ended. EXDEV: that can't be told without /proc. Implements SO_PEERPIDFD.
func (c *Conn) Identify(since uint64) (pid, pidfd int, err error) {
	pidfd = -1
	if e := c.raw.Control(func(fd uintptr) { pid, pidfd, err = identify(int(fd), since) }); e != nil {
		return 0, -1, e
	}
	return pid, pidfd, err
}

func identify(sock int, since uint64) (pid, pidfd int, err error) {
	if pid, err = checkUser(sock); err != nil {
		return 0, -1, err
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
	pidfd, err = secondLook(sock, pid, since)
	return pid, pidfd, err
}

// secondLook is Identify before Linux 6.5. A number alone may be another process's by now. It is not while the socket's other end is open, and
// its process began no later than the connection. What escapes: a process whose own children keep the socket while its number goes to
// another.
func secondLook(sock, pid int, since uint64) (pidfd int, err error) {
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
	if err := stillThere(sock, pid, fd, before, since); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func stillThere(sock, pid, pidfd int, before, since uint64) error {
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
		return unix.ECONNRESET
	}
	return nil
}
