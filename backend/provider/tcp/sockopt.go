package tcp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
	"gorail/backend/topo"
)

const (
	// Bytes in the socket of a peer of this host. It keeps what is in flight within the processor's caches: 64 MiB take 12 ms,
	// with the kernel's own choice 22 ms. On a long link it would cap the rate: 0.29 of 0.99 Gbit/s at 20 ms.
	nearBuffer = 512 << 10
	// Bytes that a socket to another host holds unsent. Small transfers overtake the rest.
	unsentLowat = 512 << 10
)

// sockets says how connections are set up. The zero value is usable, but for PeerTimeout.
type sockets struct {
	PeerTimeout time.Duration // a host that vanished is noticed on an idle connection within about this time
	Congestion  string        // "": the system's
}

// early sets what must be there before a connection begins: some algorithms of congestion control speak of it in the first packet.
func (o sockets) early(_, _ string, c syscall.RawConn) error {
	if o.Congestion == "" {
		return nil
	}
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, o.Congestion)
	}); e != nil {
		return e
	}
	return o.congestionError(err)
}

// Take duplicates the socket for the data path and sets its options. The caller closes c. Never set: SO_RCVBUF (it caps the
// rate of a long link at a tenth), TCP_USER_TIMEOUT (it ends connections to stopped peers whose kernel answers).
func (o sockets) Take(c *net.TCPConn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var e error
	err = raw.Control(func(from uintptr) { fd, e = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 0) })
	if err == nil {
		err = e
	}
	if err != nil {
		return -1, err
	}
	set := func(level, name, value int) { _ = unix.SetsockoptInt(fd, level, name, value) } // an older kernel lacks some: nothing breaks
	set(unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if sameHost(c) {
		set(unix.SOL_SOCKET, unix.SO_SNDBUF, nearBuffer)
	} else {
		set(unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentLowat)
	}
	third := max(1, int(o.PeerTimeout/3/time.Second))
	set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, third)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, max(1, third/2))
	set(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4)
	const rtoMaxMS = 44 // TCP_RTO_MAX_MS, Linux 6.15
	set(unix.IPPROTO_TCP, rtoMaxMS, max(1000, int(o.PeerTimeout/15/time.Millisecond)))
	host.RepeatSoon(fd)
	return fd, nil
}

// sameHost reports whether the peer's address is one of this network namespace.
func sameHost(c *net.TCPConn) bool {
	to := remoteAddr(c)
	if to.IsLoopback() {
		return true
	}
	list, _ := topo.Interfaces() // unknown: not this host
	return slices.ContainsFunc(list, func(i topo.Interface) bool {
		return slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr() == to })
	})
}

const sysctlFolder = "/proc/sys/net/ipv4/"

// CheckCongestion returns why connections cannot have the congestion control, or nil. Implements setsockopt.
func (o sockets) CheckCongestion() error {
	if o.Congestion == "" {
		return nil
	}
	return o.congestionError(trySocket(func(fd int) error {
		return unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, o.Congestion)
	}))
}

func (o sockets) congestionError(err error) error {
	there, allowed := sysctlNames("tcp_available_congestion_control"), sysctlNames("tcp_allowed_congestion_control")
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("option tcp_congestion=%s: %w: this kernel has %s, and this process may use %s; name one of these, or load the module tcp_%s",
			o.Congestion, err, there, allowed, o.Congestion)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("option tcp_congestion=%s: %w: this process may use %s (this kernel has %s); name one of these, "+
			"add the name to the sysctl net.ipv4.tcp_allowed_congestion_control, or give the process CAP_NET_ADMIN", o.Congestion, err, allowed, there)
	}
	return fmt.Errorf("option tcp_congestion=%s: %w", o.Congestion, err)
}

// trySocket sets an option of a socket that is not used otherwise.
func trySocket(set func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return set(fd)
}

// sysctlNames reads a list of names from a sysctl, for a message.
func sysctlNames(sysctl string) string {
	b, err := os.ReadFile(sysctlFolder + sysctl)
	if list := strings.Join(strings.Fields(string(b)), ", "); err == nil && list != "" {
		return list
	}
	return "(" + sysctl + " cannot be read)"
}
