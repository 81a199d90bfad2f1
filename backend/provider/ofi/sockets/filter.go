package sockets

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// mostNets is the maximum number of networks in one filter. Further networks are left out.
const mostNets = 32

// Filter attaches the program to a listening socket. Implements SO_ATTACH_FILTER.
func Filter(fd int, p Program) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]})
}

// Program is classic BPF. It reads a packet from the IP header on.
type Program []unix.SockFilter

func (p *Program) emit(code uint16, yes, no uint8, k uint32) {
	*p = append(*p, unix.SockFilter{Code: code, Jt: yes, Jf: no, K: k})
}

// Instructions of classic BPF: loads, a shift, a mask, jumps and the verdict.
const (
	loadByte = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
	loadWord = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	shift    = unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K
	and      = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	jump     = unix.BPF_JMP | unix.BPF_JA
	equal    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	verdict  = unix.BPF_RET | unix.BPF_K

	ipHeader = 1<<32 - 0x100000 // SKF_NET_OFF
	drop     = 0
	take     = 1<<32 - 1
)

// Admitting returns a program that admits packets only from these networks. Without networks it admits nothing. Invalid
// networks are left out.
func Admitting(from ...netip.Prefix) Program {
	const v4Source, v6Source = 12, 8
	var v4, v6 []netip.Prefix
	for _, n := range from {
		switch {
		case !n.IsValid() || len(v4)+len(v6) == mostNets:
		case n.Addr().Is6():
			v6 = append(v6, n)
		default:
			v4 = append(v4, n)
		}
	}
	var p Program
	if len(v4)+len(v6) > 0 {
		p.emit(loadByte, 0, 0, ipHeader)
		p.emit(shift, 0, 0, 4)
		p.emit(equal, 1, 0, 4)
		skip := len(p)
		p.emit(jump, 0, 0, 0) // to the IPv6 networks
		for _, n := range v4 {
			p.takeNet(n, v4Source)
		}
		p.emit(verdict, 0, 0, drop)
		p[skip].K = uint32(len(p) - skip - 1)
		for _, n := range v6 {
			p.takeNet(n, v6Source)
		}
	}
	p.emit(verdict, 0, 0, drop)
	return p
}

// takeNet admits a source address whose masked words from offset on equal the network's.
func (p *Program) takeNet(n netip.Prefix, offset uint32) {
	addr := n.Masked().Addr().AsSlice()
	words := len(addr) / 4
	for i := range words {
		mask := ^(uint32(take) >> min(max(n.Bits()-32*i, 0), 32))
		p.emit(loadWord, 0, 0, ipHeader+offset+4*uint32(i))
		p.emit(and, 0, 0, mask)
		p.emit(equal, 0, uint8(3*(words-1-i)+1), binary.BigEndian.Uint32(addr[4*i:]))
	}
	p.emit(verdict, 0, 0, take)
}

// Single returns the network of one address, in the form that packets have.
func Single(a netip.Addr) netip.Prefix {
	a = a.Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}
