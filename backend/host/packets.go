package host

// Which packets of a TCP connection do not arrive, as its kernel knows (TCP_INFO). This decides nothing.

import (
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// TCPInfo returns TCP_INFO of a connection, or of the one below it (NetConn). False: it is no TCP connection, or is closed. Implements getsockopt.
func TCPInfo(c net.Conn) (info unix.TCPInfo, ok bool) {
	if t, above := c.(interface{ NetConn() net.Conn }); above {
		c = t.NetConn()
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return info, false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return info, false
	}
	var got *unix.TCPInfo
	if raw.Control(func(fd uintptr) { got, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }) != nil || err != nil {
		return info, false
	}
	return *got, true
}

// headers are the bytes of IP and TCP in front of a segment, at least.
const headers = 40

// fewRetries is how often the kernel sends a packet again, in vain, before we say that it does not arrive. It takes 0.6 s at least.
const fewRetries = 2

// stuck reports that the kernel sends a packet again and again, and gets no acknowledgement of it.
func stuck(i *unix.TCPInfo) bool {
	return i.Unacked > 0 && max(i.Retransmits, i.Backoff) >= fewRetries
}

// largeArrived reports that packets of full size were acknowledged on the connection: those without data, and small ones, are fewer bytes.
func largeArrived(i *unix.TCPInfo) bool {
	sent := uint64(i.Data_segs_out)
	lost := uint64(i.Total_retrans) + uint64(i.Unacked)
	if i.Snd_mss == 0 || sent <= lost {
		return i.Bytes_acked > 64*uint64(i.Snd_mss)
	}
	return i.Bytes_acked/(sent-lost) >= uint64(i.Snd_mss)*3/4
}

// LostPackets says which packets do not arrive; "": none is known to be lost. between names both ends, with their addresses. alive: small packets
// get through between them on another connection.
func LostPackets(i *unix.TCPInfo, between string, alive bool) string {
	size := i.Snd_mss + headers
	switch {
	case !stuck(i) && i.Rcv_ooopack > 0 && i.Unacked == 0 && i.Last_data_recv >= 1000:
		return fmt.Sprintf("%d packets of the peer came before earlier ones, and none has come for %d s: if large ones do not arrive, check the MTU between %s",
			i.Rcv_ooopack, i.Last_data_recv/1000, between)
	case !stuck(i):
		return ""
	case i.Sacked > 0:
		return fmt.Sprintf("packets of up to %d bytes do not arrive, and %d later ones do: check the MTU between %s (this side's path has %d)", size, i.Sacked, between, i.Pmtu)
	case !largeArrived(i) && (alive || i.Bytes_acked > 1):
		return fmt.Sprintf("packets of up to %d bytes do not arrive, and smaller ones did: check the MTU between %s (this side's path has %d)", size, between, i.Pmtu)
	case alive:
		return fmt.Sprintf("no packet of this connection arrives, and those of another one do: check firewalls, and the MTU, between %s (this side's path has %d)", between, i.Pmtu)
	}
	return "no packet arrives: the network is cut, or the peer's host is down"
}

// PacketCounters are the numbers behind LostPackets, for a line of the log.
func PacketCounters(i *unix.TCPInfo) string {
	return fmt.Sprintf("%d packets unacknowledged, %d sent again (the first one %d times), mss %d, path MTU %d, %d lost, %d acknowledged behind a gap, %d bytes acknowledged",
		i.Unacked, i.Total_retrans, max(i.Retransmits, i.Backoff), i.Snd_mss, i.Pmtu, i.Lost, i.Sacked, i.Bytes_acked)
}
