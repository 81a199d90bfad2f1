package ipc

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sizeSeals keep a segment as large as it is, so that whoever maps it can't be made to fault.
const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Segment makes a shared-memory segment that peers may map, to read only or also to write, and maps it here. Both are the caller's: unmap by
// munmap, close fd. Implements memfd_create and mmap.
func Segment(size uintptr, readonly bool) (mem unsafe.Pointer, fd int, err error) {
	fd, err = unix.MemfdCreate("gorail", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, -1, err
	}
	seals := sizeSeals
	if readonly {
		seals |= unix.F_SEAL_FUTURE_WRITE // Linux 5.1
		err = unix.Ftruncate(fd, int64(size))
	} else { // what peers write to has its pages now: later there may be none, and no error but a signal
		err = fallocate(fd, int64(size))
	}
	if err == nil {
		mem, err = unix.MmapPtr(fd, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			_ = unix.MunmapPtr(mem, size)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, -1, err
	}
	return mem, fd, nil
}

func fallocate(fd int, size int64) error {
	for {
		if err := unix.Fallocate(fd, 0, 0, size); err != unix.EINTR {
			return err
		}
	}
}

// Map maps a peer's segment. EPROTO: it has not just that size, for good. Of huge pages a peer can take some away again for all the seals
// (FALLOC_FL_PUNCH_HOLE), and when the host has no more of them, who touches the hole gets SIGBUS. Small ones come back.
func Map(fd int, size uintptr, readonly bool) (unsafe.Pointer, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&sizeSeals != sizeSeals || unix.Fstat(fd, &st) != nil || st.Size != int64(size) || unix.Fstatfs(fd, &fs) != nil ||
		fs.Type != unix.TMPFS_MAGIC {
		return nil, unix.EPROTO
	}
	prot := unix.PROT_READ
	if !readonly {
		prot |= unix.PROT_WRITE
	}
	return unix.MmapPtr(fd, 0, nil, size, prot, unix.MAP_SHARED)
}
