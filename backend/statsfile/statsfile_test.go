package statsfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Usual values of stats_file work: an existing file, a new file, a device, and an open descriptor, which keeps its
// earlier content.
func TestStatsFileWritten(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("old", []byte(strings.Repeat("x", 1000)), 0o600))
	for _, name := range []string{"old", "new"} {
		path, err := Check(name)
		require.NoError(t, err)
		require.True(t, filepath.IsAbs(path))
		require.NoError(t, Write(path, []byte("counters\n"), 30*time.Second))
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, "counters\n", string(b))
	}
	path, err := Check("/dev/null")
	require.NoError(t, err)
	require.NoError(t, Write(path, []byte("counters\n"), 30*time.Second))

	log, err := os.Create("log")
	require.NoError(t, err)
	defer log.Close()
	_, err = log.WriteString("before\n")
	require.NoError(t, err)
	path, err = Check(fmt.Sprint("/dev/fd/", log.Fd()))
	require.NoError(t, err)
	require.NoError(t, Write(path, []byte("counters\n"), 30*time.Second))
	_, err = log.WriteString("after\n")
	require.NoError(t, err)
	b, err := os.ReadFile("log")
	require.NoError(t, err)
	require.Equal(t, "before\ncounters\nafter\n", string(b))
}

// Write gives up soon on a descriptor that takes no data, and on a named pipe that appeared after Check.
func TestStatsFileStuck(t *testing.T) {
	var fds [2]int
	require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	defer unix.Close(fds[0]) // the write end stays open
	for err := error(nil); err == nil; {
		_, err = unix.Write(fds[1], make([]byte, 4096))
	}
	path, err := Check(fmt.Sprint("/dev/fd/", fds[1]))
	require.NoError(t, err)
	require.ErrorContains(t, Write(path, []byte("counters\n"), time.Millisecond), "write timed out after 1ms")

	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	require.ErrorIs(t, Write(fifo, []byte("counters\n"), 30*time.Second), unix.ENXIO)
	r, err := os.OpenFile(fifo, os.O_RDWR, 0)
	require.NoError(t, err)
	defer r.Close()
	require.ErrorContains(t, Write(fifo, []byte("counters\n"), 30*time.Second), "is a named pipe")
}
