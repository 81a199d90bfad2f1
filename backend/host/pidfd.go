package host

// Shared pidfds of this process: the control channel and the rails watch the same peers, and a descriptor for each would be
// two of a peer, or more if several peers are one process.

import (
	"sync"

	"golang.org/x/sys/unix"
)

// shared is a pidfd that is open.
type shared struct {
	number, users int
}

var all = struct {
	mu    sync.Mutex
	byFD  map[int]*shared
	byPID map[int]int // the pidfd that is shared; a process that has ended may keep another
}{byFD: map[int]*shared{}, byPID: map[int]int{}}

// Share takes fd, a pidfd of the process with that number in our pid namespace, and returns the one that all users of the process share. Each
// calls Release. number 0: the process has none here, and fd is not shared. A negative fd stays as it is.
func Share(number, fd int) int {
	if fd < 0 {
		return fd
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	// two processes that have not ended have different numbers: in this order both lived at one time
	if have, ok := all.byPID[number]; ok && !Ended(have) && !Ended(fd) {
		all.byFD[have].users++
		_ = unix.Close(fd)
		return have
	}
	all.byFD[fd] = &shared{number, 1}
	if number != 0 {
		all.byPID[number] = fd
	}
	return fd
}

// Release closes a pidfd of Share with its last user. It does nothing with a negative fd.
func Release(fd int) {
	if fd < 0 {
		return
	}
	all.mu.Lock()
	defer all.mu.Unlock()
	s := all.byFD[fd]
	if s.users--; s.users > 0 {
		return
	}
	delete(all.byFD, fd)
	if all.byPID[s.number] == fd {
		delete(all.byPID, s.number)
	}
	_ = unix.Close(fd)
}

// Ended reports whether the process of a pidfd has ended. After an error of poll it returns false.
func Ended(fd int) bool {
	for {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 0); err != unix.EINTR {
			return err == nil && fds[0].Revents&unix.POLLIN != 0
		}
	}
}
