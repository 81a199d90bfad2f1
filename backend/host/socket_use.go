package host

import "golang.org/x/sys/unix"

// SocketUse says whether a process that lives has bound the Unix socket at path, which is of this type: SOCK_STREAM or SOCK_SEQPACKET. It does not
// wake that process: a connection would, and each new engine would wake all others of the host. nil: it lives, whether it listens or not.
// ECONNREFUSED: it has ended. Other errors are those of socket(2) and connect(2).
func SocketUse(path string, kind int) error {
	if err := tryConnect(path, unix.SOCK_DGRAM); err != unix.ECONNREFUSED {
		return err
	}
	return tryConnect(path, kind) // gVisor refuses the datagram socket also if the process lives
}

// tryConnect returns nil if the socket at path is there: it takes a connection, has no room for one, or has another type.
func tryConnect(path string, kind int) error {
	s, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	err = unix.Connect(s, &unix.SockaddrUnix{Name: path})
	if err == unix.EPROTOTYPE || err == unix.EAGAIN { // looked up, then refused
		return nil
	}
	return err
}
