package peer

import (
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// freeBind lets a socket be bound to an address that the host does not have yet. Implements IP_FREEBIND, IPV6_FREEBIND.
func freeBind(network, _ string, c syscall.RawConn) error {
	level, option := unix.SOL_IP, unix.IP_FREEBIND
	if strings.HasSuffix(network, "6") {
		level, option = unix.SOL_IPV6, unix.IPV6_FREEBIND
	}
	var set error
	if err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, 1) }); err != nil {
		return err
	}
	return set
}
