package host

// Shared pidfds of this process: the control channel and the rails watch the same peers, and a descriptor for each would be
// two of a peer, or more if several peers are one process.

import (
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// sharedPidfd is a pidfd that is open.
type sharedPidfd struct {
	number, users int
}

var pidfds = struct {
	mu    sync.Mutex
	byFD  map[int]*sharedPidfd
	byPID map[int]int // the pidfd that is shared; a process that has ended may keep another
}{byFD: map[int]*sharedPidfd{}, byPID: map[int]int{}}

// SharePidfd takes fd, a pidfd of the process with that number in our pid namespace, and returns the one that all users of the process share. Each
// calls ReleasePidfd. number 0: the process has none here, and fd is not shared. A negative fd stays as it is.
func SharePidfd(number, fd int) int {
	if fd < 0 {
		return fd
	}
	pidfds.mu.Lock()
	defer pidfds.mu.Unlock()
	// two processes that have not ended have different numbers: in this order both lived at one time
	if have, ok := pidfds.byPID[number]; ok && !ProcessEnded(have) && !ProcessEnded(fd) {
		pidfds.byFD[have].users++
		_ = unix.Close(fd)
		return have
	}
	pidfds.byFD[fd] = &sharedPidfd{number, 1}
	if number != 0 {
		pidfds.byPID[number] = fd
	}
	return fd
}

// ReleasePidfd closes a pidfd of SharePidfd with its last user. It does nothing with a negative fd.
func ReleasePidfd(fd int) {
	if fd < 0 {
		return
	}
	pidfds.mu.Lock()
	defer pidfds.mu.Unlock()
	s := pidfds.byFD[fd]
	if s.users--; s.users > 0 {
		return
	}
	delete(pidfds.byFD, fd)
	if pidfds.byPID[s.number] == fd {
		delete(pidfds.byPID, s.number)
	}
	_ = unix.Close(fd)
}

// ProcessEnded reports whether the process of a pidfd has ended. After an error of poll it returns false.
func ProcessEnded(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	_, err := PollNow(fds)
	return err == nil && fds[0].Revents&unix.POLLIN != 0
}

// OwnProc reports that /proc shows our own pid namespace. Process numbers of another namespace name other processes there: a container may have its host's /proc.
func OwnProc() bool {
	self, err := os.Readlink("/proc/self")
	return err == nil && self == strconv.Itoa(os.Getpid())
}
