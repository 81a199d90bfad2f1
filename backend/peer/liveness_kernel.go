package peer

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gorail/backend/host"
)

// closedByPeer reports whether the other side of a connection has closed it or is gone. Our kernel must know that,
// and all received data must have been read.
func closedByPeer(c net.Conn) (gone bool) {
	sc, ok := belowTLS(c).(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true // closed here
	}
	err = raw.Control(func(fd uintptr) {
		var next [1]byte
		n, _, err := unix.Recvfrom(int(fd), next[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = n == 0 && err == nil || err != nil && err != unix.EAGAIN && err != unix.EINTR
	})
	return gone || err != nil
}

// rawConn returns the socket of a connection, below TLS; nil: it has none.
func rawConn(c net.Conn) syscall.RawConn {
	if sc, ok := belowTLS(c).(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// readable reports whether a read of a socket would not wait. It takes nothing.
func readable(fd uintptr) bool {
	var next [1]byte
	for {
		_, _, err := unix.Recvfrom(int(fd), next[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			return err != unix.EAGAIN
		}
	}
}

// belowTLS returns the connection below TLS.
func belowTLS(c net.Conn) net.Conn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return c
}

// zeroWindow is twice the longest interval between our kernel's window probes to a peer whose receive buffer is full
// (TCP_RTO_MAX).
const zeroWindow = 240 * time.Second

// reportsWindow: the kernel fills in tcpi_snd_wnd. Linux does so since 5.4.
var reportsWindow atomic.Bool

// acknowledges reports whether the kernel at the other end of a connection has acknowledged a segment within recent.
// We ping a silent peer, so there is always a segment to acknowledge.
func acknowledges(c net.Conn, recent time.Duration) bool {
	sc, ok := belowTLS(c).(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	var info *unix.TCPInfo
	if raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }) != nil || err != nil {
		return false
	}
	const established = 1 // TCP_ESTABLISHED
	if info.State != established || info.Segs_out == 0 {
		return false // the kernel does not fill in the structure if Segs_out is 0
	}
	if info.Snd_wnd > 0 {
		reportsWindow.Store(true)
	} else if reportsWindow.Load() {
		recent = max(recent, zeroWindow)
	}
	return time.Duration(info.Last_ack_recv)*time.Millisecond < recent
}

// allAcknowledged reports that the kernel at the other end of a connection has acknowledged all that was written.
func allAcknowledged(c net.Conn) bool {
	info, ok := host.TCPInfo(c)
	return ok && info.Unacked == 0 && info.Notsent_bytes == 0
}
