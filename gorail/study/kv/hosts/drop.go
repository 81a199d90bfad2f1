package hosts

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Way is a direction of packets, seen from a host.
type Way uint32

// Directions.
const (
	Out Way = netlink.HANDLE_MIN_INGRESS // of the bridge's port
	In  Way = netlink.HANDLE_MIN_EGRESS
)

// getRandom is the number of bpf_get_prandom_u32.
const getRandom = 7

// dropper loads a program for packets that drops this share of them without a word. Few kernels have netem; all have this.
func dropper(share float64) (fd int, err error) {
	type insn struct {
		op   uint8
		regs uint8
		off  int16
		imm  int32
	}
	least := uint32(math.Round((1 - share) * math.MaxUint32)) // random numbers from here on are dropped
	if share >= 1 {
		least = 0
	}
	prog := []insn{
		{op: unix.BPF_JMP | unix.BPF_CALL, imm: getRandom},
		{op: unix.BPF_ALU | unix.BPF_MOV | unix.BPF_K, regs: 1, imm: int32(least)}, // w1
		{op: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_X, regs: 1 << 4, off: 2},       // r0 >= r1
		{op: unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K, imm: 0},                   // TC_ACT_OK
		{op: unix.BPF_JMP | unix.BPF_EXIT},
		{op: unix.BPF_ALU64 | unix.BPF_MOV | unix.BPF_K, imm: 2}, // TC_ACT_SHOT
		{op: unix.BPF_JMP | unix.BPF_EXIT},
	}
	license := []byte("Dual BSD/GPL\x00")
	attr := struct {
		kind, count    uint32
		insns, license uint64
		level, size    uint32
		log            uint64
		version, flags uint32
	}{kind: unix.BPF_PROG_TYPE_SCHED_CLS, count: uint32(len(prog)), insns: uint64(uintptr(unsafe.Pointer(&prog[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0])))}
	r, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(prog)
	runtime.KeepAlive(license)
	if errno != 0 {
		return 0, fmt.Errorf("a program that drops packets: %w", errno)
	}
	return int(r), nil
}

// Drop loses a share of the packets of all rails of a host, each way that is named: in the network, at the ports of the bridges. TCP of a host that loses packets
// by itself knows that, and waits 200 or 500 ms.
func (h *Host) Drop(share float64, ways ...Way) error {
	fd, err := dropper(share)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for r := range Rails {
		l, err := h.hub.LinkByName(h.port(r))
		if err != nil {
			return err
		}
		at := l.Attrs().Index
		if err := h.hub.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: at, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}); err != nil {
			return fmt.Errorf("clsact: %w", err)
		}
		for _, w := range ways {
			f := &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{LinkIndex: at, Parent: uint32(w), Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1}, Fd: fd, Name: "loss", DirectAction: true}
			if err := h.hub.FilterAdd(f); err != nil {
				return fmt.Errorf("a filter of packets: %w", err)
			}
		}
	}
	return nil
}

// Heal ends Drop.
func (h *Host) Heal() (failed error) {
	for r := range Rails {
		l, err := h.hub.LinkByName(h.port(r))
		if err != nil {
			return err
		}
		failed = errors.Join(failed, h.hub.QdiscDel(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}))
	}
	return failed
}
