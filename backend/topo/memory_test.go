//go:build linux

package topo

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestNodeOf(t *testing.T) {
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 64*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mem)) }()
	require.NoError(t, unix.Madvise(mem, unix.MADV_NOHUGEPAGE))
	addr := uint64(uintptr(unsafe.Pointer(&mem[0])))
	node, err := NodeOf(addr+1, 63*uint64(page))
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.Equal(t, -1, node, "nobody has touched it")
	mem[40*page] = 1
	node, err = NodeOf(addr+1, 63*uint64(page))
	require.NoError(t, err)
	require.Equal(t, -1, node, "nor what is looked at")
	mem[63*page] = 1
	node, err = NodeOf(addr+1, 64*uint64(page)-1)
	require.NoError(t, err)
	require.GreaterOrEqual(t, node, 0)
	_, err = os.Stat("/sys/devices/system/node/node0")
	if err == nil {
		_, err = os.Stat("/sys/devices/system/node/node1")
		if errors.Is(err, os.ErrNotExist) {
			require.Zero(t, node, "the only node")
		}
	}
	for _, r := range [][2]uint64{{addr, 0}, {^uint64(0), 2}, {0x1000, 4096}, {1 << 62, 1 << 61}} {
		node, err = NodeOf(r[0], r[1])
		require.NoError(t, err)
		require.Equal(t, -1, node, "%#x", r[0])
	}
}
