package ipc

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"gorail/backend/failpoint"
	"gorail/backend/host"
)

// sizeSeals fix the size of a segment: a process that maps the segment cannot fault because of a truncation.
const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// Segment creates a shared-memory segment that peers may map, and maps it here. With readonly peers can map it for
// reading only. The caller unmaps mem (munmap) and closes fd. Implements memfd_create and mmap.
func Segment(size uintptr, readonly bool) (mem unsafe.Pointer, fd int, err error) {
	if err = failpoint.Fail("shm_memfd"); err != nil {
		return nil, -1, err
	}
	fd, err = memfd("gorail")
	if err != nil {
		return nil, -1, err
	}
	seals := sizeSeals
	if readonly {
		seals |= unix.F_SEAL_FUTURE_WRITE // Linux 5.1
		err = resize(fd, int64(size))
	} else { // allocate now: a page missing at a later write raises a signal instead of an error
		err = fallocate(fd, int64(size))
	}
	if err == nil {
		err = failpoint.Fail("shm_memfd_size")
	}
	if err == nil {
		err = failpoint.Fail("shm_mmap")
	}
	if err == nil {
		mem, err = mapShared(fd, size, unix.PROT_READ|unix.PROT_WRITE)
	}
	if err == nil {
		if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			_ = unix.MunmapPtr(mem, size)
		} else if err = tells(fd); err != nil {
			_ = unix.MunmapPtr(mem, size)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, -1, err
	}
	return mem, fd, nil
}

// tells checks that the system tells of a segment what a peer asks before it maps one. Without that no segment of a peer could be mapped,
// and each session would fail.
func tells(fd int) error {
	var st unix.Stat_t
	if err := look(fd, &st); err != nil {
		return &Error{"look at an own segment", Errno(err), "fcntl, fstat and fstatfs must tell of memory files: does a filter of system calls refuse them?"}
	}
	return nil
}

// Ring creates a ring, a segment without pages before the first access, and maps it here. The caller unmaps mem (munmap) and closes
// fd. Implements memfd_create and mmap.
func Ring(size uint64) (mem unsafe.Pointer, fd int, err error) {
	if err = failpoint.Fail("shm_ring"); err != nil {
		return nil, -1, err
	}
	if fd, err = memfd("gorail ring"); err != nil {
		return nil, -1, err
	}
	if err = resize(fd, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals)
	}
	if err == nil {
		mem, err = mapRing(fd, size)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, -1, err
	}
	return mem, fd, nil
}

// mapRing maps a ring, with huge pages if the host allows them for shared memory.
func mapRing(fd int, size uint64) (unsafe.Pointer, error) {
	mem, err := mapShared(fd, uintptr(size), unix.PROT_READ|unix.PROT_WRITE)
	if err == nil {
		_ = unix.Madvise(unsafe.Slice((*byte)(mem), size), unix.MADV_HUGEPAGE)
	}
	return mem, err
}

// MapRing maps a peer's ring and returns its size in bytes, a multiple of unit. The peer can take its pages away: an access may raise
// SIGBUS. EPROTO: not a tmpfs file of sealed size.
func MapRing(fd int, unit uint64) (mem unsafe.Pointer, size uint64, err error) {
	var st unix.Stat_t
	if !sealed(fd, &st) || st.Size < int64(unit) || uint64(st.Size)%unit != 0 || st.Size > maxRing {
		return nil, 0, unix.EPROTO
	}
	mem, err = mapRing(fd, uint64(st.Size))
	return mem, uint64(st.Size), err
}

// maxRing bounds the ring of a peer: a chunk of it is copied at one go.
const maxRing = 64 << 20

// sealed reports a tmpfs file of sealed size.
func sealed(fd int, st *unix.Stat_t) bool { return look(fd, st) == nil }

// look is sealed; the error says which call fails, and is EPROTO for another file.
func look(fd int, st *unix.Stat_t) error {
	var fs unix.Statfs_t
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err == nil {
		err = unix.Fstat(fd, st)
	}
	if err == nil {
		err = unix.Fstatfs(fd, &fs)
	}
	if err == nil && (seals&sizeSeals != sizeSeals || fs.Type != unix.TMPFS_MAGIC) {
		err = unix.EPROTO
	}
	return err
}

// memfd creates memory that nobody can execute, where the kernel knows how (Linux 6.3). A host may demand that (sysctl
// vm.memfd_noexec). Implements memfd_create.
func memfd(name string) (fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if fd, err = unix.MemfdCreate(name, flags|unix.MFD_NOEXEC_SEAL); err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, err
}

// mapShared maps a segment and keeps it out of core dumps: it holds messages of the application, and tokens.
// Implements mmap and madvise.
func mapShared(fd int, size uintptr, prot int) (unsafe.Pointer, error) {
	mem, err := unix.MmapPtr(fd, 0, nil, size, prot, unix.MAP_SHARED)
	if err == nil {
		_ = unix.Madvise(unsafe.Slice((*byte)(mem), size), unix.MADV_DONTDUMP)
	}
	return mem, err
}

func fallocate(fd int, size int64) error {
	return grow(func() error { return unix.Fallocate(fd, 0, 0, size) })
}

func resize(fd int, size int64) error {
	return grow(func() error { return unix.Ftruncate(fd, size) })
}

func grow(call func() error) error {
	for {
		err := host.Grow(call)
		switch err {
		case unix.EINTR:
			continue
		case unix.EFBIG:
			var most unix.Rlimit
			_ = unix.Getrlimit(unix.RLIMIT_FSIZE, &most)
			return &Error{"size of a memory file", unix.EFBIG, fmt.Sprintf("files of this process may have %d KiB: raise the limit with ulimit -f", most.Cur>>10)}
		}
		return err
	}
}

// Map maps a peer's segment. EPROTO: not a tmpfs segment of exactly that size with sealed size. Segments of huge
// pages are refused: despite the seals the peer can free huge pages (FALLOC_FL_PUNCH_HOLE). Access to the hole raises
// SIGBUS if the host has no huge page left. Small pages come back.
func Map(fd int, size uintptr, readonly bool) (unsafe.Pointer, error) {
	var st unix.Stat_t
	if !sealed(fd, &st) || st.Size != int64(size) {
		return nil, unix.EPROTO
	}
	prot := unix.PROT_READ
	if !readonly {
		prot |= unix.PROT_WRITE
	}
	if err := failpoint.Fail("shm_map"); err != nil {
		return nil, err
	}
	return mapShared(fd, size, prot)
}
