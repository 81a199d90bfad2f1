package shm

/*
#include "local.h"
*/
import "C"

import (
	"os"

	"golang.org/x/sys/unix"
)

// listener takes in connections when nobody polls for them, so that strangers' don't fill the socket's queue: the rail has no link
// yet, or the application polls for links that are all there. It holds no thread.
type listener struct {
	file  *os.File // the rail's socket, again
	ended chan struct{}
}

func listen(c *C.lc_rail) (*listener, error) {
	fd, err := unix.FcntlInt(uintptr(c.listen_sock), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	l := &listener{os.NewFile(uintptr(fd), "unix socket of a rail"), make(chan struct{})}
	conn, err := l.file.SyscallConn()
	if err != nil {
		_ = l.file.Close()
		return nil, err
	}
	go func() {
		defer close(l.ended)
		_ = conn.Read(func(uintptr) bool { // until it is closed
			for C.lc_admit(c) != 0 {
			}
			return false
		})
	}()
	return l, nil
}

// close returns when the goroutine has ended.
func (l *listener) close() {
	_ = l.file.Close()
	<-l.ended
}
