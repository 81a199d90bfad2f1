package node

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// No namespace has a clock of the day, and Go reads the kernel's vDSO, which no preloaded library reaches. So a node changes its own copy of
// the vDSO: clock_gettime there leads to stub. Nothing outside this process changes, and libc, NIXL and both Go runtimes see the same time.

// stub is clock_gettime by a system call, with seconds added to the clock of the day.
var stub = []byte{
	0xb8, 0xe4, 0, 0, 0, // mov eax, 228
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi
	0x75, 0x07, // jne to ret: another clock than CLOCK_REALTIME
	0x48, 0x81, 0x06, 0, 0, 0, 0, // add qword [rsi], seconds
	0xc3, // ret
}

// addedAt is where the seconds are in stub.
const addedAt = 14

// added is the seconds in the stub in use; nil before ownClock.
var added *byte

// ownClock gives this process a clock of the day of its own. It is called before other libraries are loaded.
func ownClock() error {
	if runtime.GOARCH != "amd64" {
		return errors.New("a clock of one process: amd64 only")
	}
	whole, err := vdso()
	if err != nil {
		return err
	}
	f, err := elf.NewFile(bytes.NewReader(whole))
	if err != nil {
		return fmt.Errorf("the vDSO: %w", err)
	}
	list, err := f.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("the vDSO: %w", err)
	}
	for _, s := range list {
		if s.Name == "__vdso_clock_gettime" {
			return lead(whole, uintptr(s.Value))
		}
	}
	return errors.New("the vDSO has no __vdso_clock_gettime")
}

// lead makes a function of the vDSO lead to stub, with one store of eight bytes: other threads may call it meanwhile.
func lead(whole []byte, offset uintptr) error {
	base := uintptr(unsafe.Pointer(unsafe.SliceData(whole)))
	at := base + offset
	if at%8 != 0 || offset+8 > uintptr(len(whole)) {
		return fmt.Errorf("__vdso_clock_gettime at %#x is not aligned", at)
	}
	near, _, errno := unix.Syscall6(unix.SYS_MMAP, base-64<<20, uintptr(os.Getpagesize()), unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)
	if errno != 0 {
		return fmt.Errorf("memory for a clock: %w", errno)
	}
	copy(unsafe.Slice((*byte)(memory(near)), len(stub)), stub)
	far := int64(near) - int64(at) - 5
	if far < math.MinInt32 || far > math.MaxInt32 {
		return errors.New("no memory near the vDSO")
	}
	if err := unix.Mprotect(whole, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC); err != nil {
		return fmt.Errorf("the vDSO cannot be changed: %w", err)
	}
	jump := []byte{0xe9, 0, 0, 0, 0, 0x90, 0x90, 0x90}
	binary.LittleEndian.PutUint32(jump[1:], uint32(int32(far)))
	atomic.StoreUint64((*uint64)(memory(at)), binary.LittleEndian.Uint64(jump))
	added = (*byte)(memory(near + addedAt))
	return nil
}

// memory is an address that no Go memory has.
func memory(at uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&at)) }

// vdso is the mapping of the vDSO. The kernel changes the protection of all of it only.
func vdso() ([]byte, error) {
	text, err := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(text)) {
		var from, to uintptr
		if strings.HasSuffix(line, "[vdso]\n") {
			if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
				return nil, err
			}
			return unsafe.Slice((*byte)(memory(from)), to-from), nil
		}
	}
	return nil, errors.Join(errors.New("no vDSO in /proc/self/maps"), err)
}

// stepClock sets the clock of the day by so much beyond the machine's.
func stepClock(by time.Duration) error {
	if added == nil {
		return errors.New("the node has no clock of its own")
	}
	s := by / time.Second
	if s < math.MinInt32 || s > math.MaxInt32 {
		return fmt.Errorf("a clock cannot be stepped by %v", by)
	}
	b := unsafe.Slice(added, 4)
	binary.LittleEndian.PutUint32(b, uint32(int32(s)))
	return nil
}
