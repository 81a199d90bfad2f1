package ofi

import "syscall"

// noDescriptors says whether the process has used up its file descriptors.
func noDescriptors() bool {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err == nil {
		syscall.Close(fd)
	}
	return err == syscall.EMFILE
}
