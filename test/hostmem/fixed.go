package hostmem

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Fixed is shared memory at addresses that stay: it can be unmapped, and other memory be mapped there. It is far from where the kernel
// chooses addresses, so what is unmapped stays free.
type Fixed struct {
	At    uintptr
	Size  uint64
	Inode uint64 // of the file that is the memory; 0: none
}

const (
	fixedBase = uintptr(0x2000_0000_0000)
	fixedStep = uintptr(1) << 34
)

// NewFixed maps memory. Each number is once in a process, at a time.
func NewFixed(number int, size uint64) (*Fixed, error) {
	m := &Fixed{At: fixedBase + fixedStep*uintptr(number), Size: size}
	return m, m.Map()
}

// Bytes are the memory, as long as it is mapped.
func (m *Fixed) Bytes() []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&m.At))), m.Size)
}

// Unmap takes the memory away.
func (m *Fixed) Unmap() error {
	if _, _, e := unix.Syscall(unix.SYS_MUNMAP, m.At, uintptr(m.Size), 0); e != 0 {
		return os.NewSyscallError("munmap", e)
	}
	m.Inode = 0
	return nil
}

// Map puts new memory at the addresses, where nothing is.
func (m *Fixed) Map() error {
	fd, err := unix.MemfdCreate("fixed", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(m.Size)); err != nil {
		return err
	}
	_, _, e := unix.Syscall6(unix.SYS_MMAP, m.At, uintptr(m.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED_NOREPLACE, uintptr(fd), 0)
	if e != 0 {
		return fmt.Errorf("mmap at %#x: %w", m.At, e)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	m.Inode = st.Ino
	return nil
}
