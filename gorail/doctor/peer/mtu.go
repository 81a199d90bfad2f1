package peer

import (
	"net"

	"golang.org/x/sys/unix"
)

// mtu is the path MTU of a connection; 0: unknown.
func mtu(c net.Conn) (n int) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return 0
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return 0
	}
	level, name := unix.IPPROTO_IP, unix.IP_MTU
	if a, ok := c.LocalAddr().(*net.TCPAddr); ok && a.IP.To4() == nil {
		level, name = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	_ = raw.Control(func(fd uintptr) { n, _ = unix.GetsockoptInt(int(fd), level, name) })
	return n
}
