package peer

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// alive says whether a silent peer shows signs of life: its process runs on this host, its host acknowledges what we send, or
// its host has accepted a connection lately. A process that is stopped or starved of CPU says nothing, and its kernel answers for
// it. l is nil while the session has no connection.
func (s *session) alive(l *line) bool {
	s.mu.Lock()
	running, reached, since := s.running, s.reached, s.unpluggedAt
	s.mu.Unlock()
	timeout := s.node.cfg.PeerTimeout
	switch {
	case l == nil && running && time.Since(since) < timeout:
		return true // not for longer: its engine may have ended without a word
	case l == nil:
		return !reached.IsZero() && time.Since(reached) < timeout
	case running:
		return true
	}
	return s.node.cfg.acks(l.conn, timeout)
}

// leftAlone says that the other side of a connection has closed it or is gone, as far as our kernel knows and all that came was read.
func leftAlone(c net.Conn) (gone bool) {
	sc, ok := c.(syscall.Conn)
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

// zeroWindow is twice the longest time between our kernel's questions to a peer whose receive buffer is full (TCP_RTO_MAX).
const zeroWindow = 240 * time.Second

// tellsWindow: the kernel fills in tcpi_snd_wnd, as Linux does from 5.4 on.
var tellsWindow atomic.Bool

// acknowledges says that the kernel at the other end of a connection has acknowledged something within recent. We ping a silent peer, so
// there is always something to acknowledge.
func acknowledges(c net.Conn, recent time.Duration) bool {
	sc, ok := c.(syscall.Conn)
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
		return false // Segs_out is 0 where the kernel does not fill the structure in
	}
	if info.Snd_wnd > 0 {
		tellsWindow.Store(true)
	} else if tellsWindow.Load() {
		recent = max(recent, zeroWindow)
	}
	return time.Duration(info.Last_ack_recv)*time.Millisecond < recent
}
