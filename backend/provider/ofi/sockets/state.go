package sockets

import (
	"math"

	"golang.org/x/sys/unix"
)

// States of struct tcp_info.
const (
	tcpEstablished = 1
	tcpCloseWait   = 8
)

// Listens implements SO_ACCEPTCONN.
func Listens(fd int) bool {
	yes, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && yes != 0
}

// Inherited reports that a program executed by this process gets the descriptor. libfabric leaves its sockets so.
func Inherited(fd int) bool {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil && flags&unix.FD_CLOEXEC == 0
}

// KeepFromChildren implements FD_CLOEXEC.
func KeepFromChildren(fd int) { unix.CloseOnExec(fd) }

// ConnState is the state of a connection.
type ConnState struct {
	Unread bool // no byte was read from it yet
	Open   bool // this side has not shut it down
}

// StateOf returns a connection's state. The byte counter is read first. Bytes that arrive afterwards make a socket look
// unread, which is the safe error. A FIN counts as a received byte, but never as an unread one.
func StateOf(fd int) ConnState {
	tcp, unread, ok := received(fd)
	if !ok {
		return ConnState{Unread: true, Open: true}
	}
	var fin uint64
	if tcp.State != tcpEstablished {
		fin = 1
	}
	return ConnState{
		Unread: tcp.Bytes_received <= unread+fin,
		Open:   tcp.State == tcpEstablished || tcp.State == tcpCloseWait,
	}
}

// BytesRead returns how many bytes of a connection libfabric has read; 0 if unknown.
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

// Backlog reports whether connections wait to be accepted, or the state is unknown.
func Backlog(fd int) bool {
	tcp, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err != nil || tcp.Unacked != 0
}

// Empty discards the received data of a socket that is shut down. No more arrives: the kernel now answers data with a
// reset.
func Empty(fd int) {
	const rounds = 64 // one round takes everything
	for range rounds {
		n, _, e := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), 0, math.MaxInt32, unix.MSG_TRUNC|unix.MSG_DONTWAIT, 0, 0)
		if e != 0 || n == 0 {
			return
		}
	}
}
