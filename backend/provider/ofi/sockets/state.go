package sockets

import (
	"math"

	"golang.org/x/sys/unix"
)

// tcpEstablished and tcpCloseWait are states of struct tcp_info.
const (
	tcpEstablished = 1
	tcpCloseWait   = 8
)

// Listens implements SO_ACCEPTCONN.
func Listens(fd int) bool {
	yes, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && yes != 0
}

// Story is what a connection has been through.
type Story struct {
	Unread bool // nothing was read from it yet
	Open   bool // this side has not shut it down
}

// Look tells a connection's story. The counter comes first: what arrives in between makes a socket look unread, which is the safe
// error. A FIN counts as a byte received and never as one to read.
func Look(fd int) Story {
	tcp, unread, ok := received(fd)
	if !ok {
		return Story{Unread: true, Open: true}
	}
	var fin uint64
	if tcp.State != tcpEstablished {
		fin = 1
	}
	return Story{
		Unread: tcp.Bytes_received <= unread+fin,
		Open:   tcp.State == tcpEstablished || tcp.State == tcpCloseWait,
	}
}

// BytesRead says how many bytes of a connection libfabric has read; 0 where nobody knows.
func BytesRead(fd int) uint64 {
	tcp, unread, ok := received(fd)
	if !ok || tcp.Bytes_received < unread {
		return 0
	}
	return tcp.Bytes_received - unread
}

func received(fd int) (tcp *unix.TCPInfo, unread uint64, ok bool) {
	tcp, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return nil, 0, false
	}
	n, err := unix.IoctlGetUint32(fd, unix.SIOCINQ)
	return tcp, uint64(n), err == nil
}

// Backlog says that connections wait to be accepted, or that it can't be told.
func Backlog(fd int) bool {
	tcp, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err != nil || tcp.Unacked != 0
}

// Empty throws away what has come in to a socket that is shut down. No more will: from now on the kernel answers data with a reset.
func Empty(fd int) {
	const rounds = 64 // one takes all there is
	for range rounds {
		n, _, e := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), 0, math.MaxInt32, unix.MSG_TRUNC|unix.MSG_DONTWAIT, 0, 0)
		if e != 0 || n == 0 {
			return
		}
	}
}
