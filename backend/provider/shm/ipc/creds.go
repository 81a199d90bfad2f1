package ipc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gorail/backend/failpoint"
	"gorail/backend/host"
)

// The kernel identifies the process at the other end of a connected socket, as of connect() and listen(). Claims of
// the peer do not count. Neither do SCM_CREDENTIALS: root of a pid namespace may write any process number there.

// noPeerPIDFD makes Identify work as on Linux before 6.5. Tests set it.
var noPeerPIDFD bool

// Checking is the step name of CheckUser and Identify in errors.
const Checking = "check of the peer's user and process"

// Users says which users' processes may be peers: option local_peers.
type Users uint8

const (
	SameUser Users = iota // processes of our user
	AnyUser               // all that show the token
)

// Process is what the kernel tells of the process at a socket's other end.
type Process struct {
	PID      int  // in our pid namespace; 0: it has no number there, or the number does not identify it
	SameUser bool // its user is ours
}

// CheckUser returns the process that connected, or that listened, at the socket's other end, if the policy lets its
// user in. EACCES: another user. EOVERFLOW: that user's id may stand for several users here. Implements SO_PEERCRED.
func (c *Conn) CheckUser(users Users) (p Process, err error) {
	e := c.raw.Control(func(fd uintptr) { p, err = checkUser(int(fd), users) })
	if e != nil {
		return Process{}, e
	}
	return p, err
}

func checkUser(sock int, users Users) (p Process, err error) {
	who, err := unix.GetsockoptUcred(sock, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return p, err
	}
	if who.Uid == ^uint32(0) { // no process has connected or listened
		return p, unix.ENOTCONN
	}
	p = Process{max(0, int(who.Pid)), who.Uid == uint32(unix.Geteuid())}
	switch unclear := host.Ambiguous(who.Uid); {
	case unclear && users == AnyUser:
		p.SameUser = false
	case unclear:
		return Process{}, unix.EOVERFLOW
	case !p.SameUser && users != AnyUser:
		return Process{}, unix.EACCES
	}
	return p, nil
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

// HungUp reports that nobody holds the other end of a connection.
func HungUp(sock int) bool {
	p := []unix.PollFd{{Fd: int32(sock)}}
	n, _ := host.PollNow(p)
	return n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}

// Identify is CheckUser and returns a pidfd of the process, too, which the caller closes. No other process gets the
// number while this one lives. since: a Ticks value at which the connection existed. Before Linux 6.5 there is no pidfd
// (-1) of a process that /proc does not show under a number of ours: its end shows at the closed socket. ESRCH: the
// process has ended. Implements SO_PEERPIDFD.
func (c *Conn) Identify(users Users, since uint64) (p Process, pidfd int, err error) {
	return c.identify(users, since, false)
}

// identify implements Identify. closed: the other end may have closed the connection. Before Linux 6.5 another process may
// then have the number, so what that process shows must prove who it is.
func (c *Conn) identify(users Users, since uint64, closed bool) (p Process, pidfd int, err error) {
	pidfd = -1
	if e := c.raw.Control(func(fd uintptr) { p, pidfd, err = identify(int(fd), users, since, closed) }); e != nil {
		return Process{}, -1, e
	}
	return p, pidfd, err
}

func identify(sock int, users Users, since uint64, closed bool) (p Process, pidfd int, err error) {
	if p, err = checkUser(sock, users); err != nil {
		return Process{}, -1, err
	}
	if err := failpoint.Fail("shm_pidfd"); err != nil {
		return p, -1, err
	}
	if !noPeerPIDFD {
		fd, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		switch err {
		case nil:
			return p, fd, nil
		case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ESRCH:
			return p, -1, err
		}
	}
	switch {
	case p.PID == 0:
		return p, -1, nil
	case host.OwnProc():
		pidfd, err = identifyByNumber(sock, p.PID, since, closed)
	case p.PID == os.Getpid(): // we live, so nobody else has the number
		pidfd, err = unix.PidfdOpen(p.PID, 0)
	default:
		p.PID = 0
	}
	return p, pidfd, err
}

// identifyByNumber is Identify before Linux 6.5. By now another process may have the number. It has not, if the
// socket's other end is still open and the process started before the connection. One case escapes: the peer has
// ended, its children keep the socket open, and another process has taken its number.
func identifyByNumber(sock, pid int, since uint64, closed bool) (pidfd int, err error) {
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
	again, err := checkUser(sock, AnyUser)
	if err != nil {
		return err
	}
	after, err := started(pid)
	switch {
	case again.PID != pid:
		return unix.ESRCH
	case err != nil:
		return err
	case after != before || after > since:
		return unix.ESRCH
	}
	if HungUp(sock) {
		if host.ProcessEnded(pidfd) {
			return unix.ESRCH
		}
		if !closed {
			return unix.ECONNRESET
		}
	}
	return nil
}
