//go:build linux

package topo

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// NodeOf returns the NUMA node of length bytes of this process's memory at addr. It looks at the first, the middle and
// the last page. The result is -1 if these pages are on several nodes or were never touched. An error means that the
// kernel refused the query: in containers it needs CAP_SYS_NICE. NodeOf does not touch the memory. Implements
// move_pages(2), which moves nothing here.
func NodeOf(addr, length uint64) (int, error) {
	if length == 0 || addr+length < addr {
		return -1, nil
	}
	page := ^uint64(os.Getpagesize() - 1)
	pages := [...]uint64{addr & page, (addr + length/2) & page, (addr + length - 1) & page}
	var status [len(pages)]int32
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&pages)
	pin.Pin(&status)
	if _, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, 0, uintptr(len(pages)), uintptr(unsafe.Pointer(&pages)), 0,
		uintptr(unsafe.Pointer(&status)), 0); errno != 0 {
		return -1, fmt.Errorf("move_pages: %w", errno)
	}
	return common(status[:]), nil
}

// common returns the node that all placed pages share, else -1. A negative status is an errno.
func common(status []int32) int {
	node := -1
	for _, s := range status {
		switch {
		case s < 0:
		case node < 0:
			node = int(s)
		case node != int(s):
			return -1
		}
	}
	return node
}
