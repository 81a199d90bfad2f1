package hostmem

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Tile is the size of the repeated part of tiled memory. It is a multiple of the page size and no divisor of 4 GiB, so
// that an address truncated to 32 bits hits other bytes.
const Tile = 16<<20 + 4096

// Range is a part of a buffer.
type Range struct{ Off, Len uint64 }

// Windows returns the parts of tiled memory with their own pages: both ends, and the places where lengths and addresses
// exceed 31 and 32 bits. The memory between them repeats one tile.
func Windows(size uint64) []Range {
	const half = 4 << 20
	list := []Range{{0, half}}
	for _, mid := range []uint64{1 << 30, 2 << 30, 3 << 30, 4 << 30} {
		if mid+2*half < size {
			list = append(list, Range{mid - half, 2 * half})
		}
	}
	if n := len(list) - 1; list[n].Off+list[n].Len+half > size&^4095 {
		list[n].Len = size - list[n].Off
		return list
	}
	tail := (size - half) &^ 4095
	return append(list, Range{tail, size - tail})
}

// tiled maps size bytes over the pages of the windows and one tile.
func tiled(size int) ([]byte, error) {
	fd, err := unix.MemfdCreate("gorail-test", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	windows, file := Windows(uint64(size)), uint64(Tile)
	for _, w := range windows {
		file += pages(w.Len)
	}
	if err := unix.Ftruncate(fd, int64(file)); err != nil {
		return nil, err
	}
	b, err := unix.Mmap(-1, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	base := unsafe.Pointer(unsafe.SliceData(b))
	over := func(at, n, from uint64) {
		if err != nil || n == 0 {
			return
		}
		_, err = unix.MmapPtr(fd, int64(from), unsafe.Add(base, at), uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	}
	at, own := uint64(0), uint64(Tile)
	for _, w := range windows {
		for at < w.Off {
			n := min(Tile-at%Tile, w.Off-at)
			over(at, n, at%Tile)
			at += n
		}
		over(at, pages(w.Len), own)
		at, own = at+w.Len, own+pages(w.Len)
	}
	if err != nil {
		_ = unix.Munmap(b)
		return nil, os.NewSyscallError("mmap", err)
	}
	return b, nil
}

func pages(n uint64) uint64 { return (n + 4095) &^ 4095 }
