package handshake

import (
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/topo"
)

const (
	// Bytes in the socket of a peer of this host. It keeps what is in flight within the processor's caches: 64 MiB take 12 ms,
	// with the kernel's own choice 22 ms. On a long link it would cap the rate: 0.29 of 0.99 Gbit/s at 20 ms.
	nearBuffer = 512 << 10
	// Bytes that a socket to another host holds unsent. Small transfers overtake the rest.
	unsent = 512 << 10
)

// Sockets says how connections are set up. The zero value is usable, but for PeerTimeout.
type Sockets struct {
	PeerTimeout time.Duration // a host that vanished is noticed on an idle connection within about this time
	Congestion  string        // "": the system's
}

// early sets what must be there before a connection begins: some algorithms of congestion control speak of it in the first packet.
func (o Sockets) early(_, _ string, c syscall.RawConn) error {
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
func (o Sockets) Take(c *net.TCPConn) (fd int, err error) {
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
		set(unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsent)
	}
	third := max(1, int(o.PeerTimeout/3/time.Second))
	set(unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, third)
	set(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, max(1, third/2))
	set(unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4)
	const rtoMaxMS = 44 // TCP_RTO_MAX_MS, Linux 6.15
	set(unix.IPPROTO_TCP, rtoMaxMS, max(1000, int(o.PeerTimeout/15/time.Millisecond)))
	return fd, nil
}

// sameHost reports whether the peer's address is one of this network namespace.
func sameHost(c *net.TCPConn) bool {
	to := source(c)
	if to.IsLoopback() {
		return true
	}
	list, _ := topo.Interfaces() // unknown: not this host
	return slices.ContainsFunc(list, func(i topo.Interface) bool {
		return slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr() == to })
	})
}
