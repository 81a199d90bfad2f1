package e2e

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// probe is a uprobe: the kernel counts the entries of a function of a file, in all processes that have loaded the file.
// It needs root and perf events.
type probe struct{ fds []int } // one for each CPU

func openProbe(file, symbol string) (*probe, error) {
	typ, err := os.ReadFile("/sys/bus/event_source/devices/uprobe/type")
	if err != nil {
		return nil, err
	}
	kind, err := strconv.ParseUint(strings.TrimSpace(string(typ)), 10, 32)
	if err != nil {
		return nil, err
	}
	off, err := offset(file, symbol)
	if err != nil {
		return nil, err
	}
	path, err := unix.BytePtrFromString(file)
	if err != nil {
		return nil, err
	}
	var pin runtime.Pinner // perf_event_attr holds the path's address as a number
	pin.Pin(path)
	defer pin.Unpin()
	attr := unix.PerfEventAttr{Type: uint32(kind), Size: unix.PERF_ATTR_SIZE_VER5,
		Ext1: uint64(uintptr(unsafe.Pointer(path))), Ext2: off}
	p := &probe{}
	for cpu := range runtime.NumCPU() {
		fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if err != nil {
			p.close()
			return nil, fmt.Errorf("perf_event_open: %w", err)
		}
		p.fds = append(p.fds, fd)
	}
	return p, nil
}

// offset is the position of a symbol's code in the file.
func offset(file, symbol string) (uint64, error) {
	f, err := elf.Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	symbols, err := f.Symbols()
	if err != nil {
		return 0, err
	}
	for _, s := range symbols {
		if s.Name != symbol {
			continue
		}
		for _, seg := range f.Progs {
			if seg.Type == elf.PT_LOAD && s.Value >= seg.Vaddr && s.Value < seg.Vaddr+seg.Filesz {
				return s.Value - seg.Vaddr + seg.Off, nil
			}
		}
	}
	return 0, errors.New("no symbol " + symbol + " in " + file)
}

func (p *probe) count() uint64 {
	var sum uint64
	for _, fd := range p.fds {
		var b [8]byte
		if n, err := unix.Read(fd, b[:]); n == len(b) && err == nil {
			sum += binary.NativeEndian.Uint64(b[:])
		}
	}
	return sum
}

func (p *probe) close() {
	for _, fd := range p.fds {
		_ = unix.Close(fd)
	}
}
