package held_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/test/held"
)

// memory makes a file of shared memory, and returns its inode.
func memory(t *testing.T, size int64) (*os.File, uint64) {
	t.Helper()
	fd, err := unix.MemfdCreate("held", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "held")
	require.NoError(t, f.Truncate(size))
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(fd, &st))
	return f, st.Ino
}

func holds(t *testing.T, pid int, want uint64, inodes ...uint64) {
	t.Helper()
	n, err := held.By(pid, inodes...)
	require.NoError(t, err)
	require.Equal(t, want, n)
}

// TestHeld: a descriptor holds a file, a mapping holds it, and nothing else does.
func TestHeld(t *testing.T) {
	const size = 64 << 10
	self := os.Getpid()
	f, inode := memory(t, size)
	g, other := memory(t, size)
	holds(t, self, size, inode)
	holds(t, self, 2*size, inode, other)
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, g.Close())
	holds(t, self, size, inode, other)
	require.NoError(t, unix.Munmap(b))
	holds(t, self, 0, inode, other)
}

// TestEnded: a child that inherits a descriptor holds the file until it is killed, waited for or not.
func TestEnded(t *testing.T) {
	f, inode := memory(t, 4096)
	defer f.Close()
	c := exec.Command("sleep", "1000")
	c.ExtraFiles = []*os.File{f}
	require.NoError(t, c.Start())
	holds(t, c.Process.Pid, 4096, inode)
	require.NoError(t, c.Process.Kill())
	var info unix.Siginfo
	require.NoError(t, unix.Waitid(unix.P_PID, c.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil))
	holds(t, c.Process.Pid, 0, inode)
	_ = c.Wait()
	holds(t, c.Process.Pid, 0, inode)
}
