package host

import "golang.org/x/sys/unix"

// SocketUse says whether a process that lives has bound the Unix socket at path, which is not of type SOCK_DGRAM. It does not wake that process: a
// connection would, and each new engine would wake all others of the host. nil: it lives, whether it listens or not. ECONNREFUSED: it has ended.
// Other errors are those of socket(2) and connect(2).
func SocketUse(path string) error {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if err = unix.Connect(s, &unix.SockaddrUnix{Name: path}); err == unix.EPROTOTYPE { // looked up, then refused for its type
		return nil
	}
	return err
}
