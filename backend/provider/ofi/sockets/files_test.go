package sockets

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The open directory lists descriptors opened later, and reports the next free descriptor.
func TestFiles(t *testing.T) {
	files, err := OpenFiles()
	require.NoError(t, err)
	defer files.Close()
	list := func() (all []int) {
		require.NoError(t, files.Each(func(fd int) bool { all = append(all, fd); return true }))
		return all
	}
	next := files.LowestFree()
	require.NotContains(t, list(), next)
	fd, err := unix.Dup(files.dir)
	require.NoError(t, err)
	require.Contains(t, list(), fd)
	require.NoError(t, unix.Close(fd))
	require.False(t, slices.Contains(list(), fd))
	n := 0
	require.NoError(t, files.Each(func(int) bool { n++; return n < 2 }))
	require.Equal(t, 2, n)
	require.Error(t, NoFiles.Each(func(int) bool { return true }))
	require.Equal(t, -1, NoFiles.LowestFree())
}
