package engine

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/option"
	"gorail/backend/provider/fake"
	"gorail/backend/status"
)

// A stats_file that could not be written at the engine's end is an error at its creation.
func TestStatsFileRefused(t *testing.T) {
	h := onFake(t, fake.TCPCaps())
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, unix.Mkfifo(in("fifo"), 0o600))
	require.NoError(t, os.Symlink(in("fifo"), in("link")))
	require.NoError(t, os.WriteFile(in("file"), nil, 0o600))
	l, err := net.Listen("unix", in("socket"))
	require.NoError(t, err)
	defer l.Close()
	null, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer null.Close()
	for path, why := range map[string]string{
		in("no/file"):                           "folder " + in("no") + ": no such file or directory",
		in("file/file"):                         "not a directory",
		dir:                                     "is a directory",
		in("fifo"):                              "is a named pipe",
		in("link"):                              "is a named pipe",
		in("socket"):                            "is neither a file nor a terminal",
		"/dev/fd/9999":                          "bad file descriptor",
		fmt.Sprint("/proc/self/fd/", null.Fd()): "open for reading only",
	} {
		opts, _, err := option.Parse(map[string]string{"stats_file": path}, nil)
		require.NoError(t, err)
		_, err = New(Config{Agent: "ann", Options: opts, Provider: h.fabric.Provider(), Log: slog.New(h.log)})
		require.ErrorContains(t, err, "option stats_file="+path)
		require.ErrorContains(t, err, why)
		require.Equal(t, status.ErrInvalidParam, status.Of(err))
	}
}

// What an operator may well name is written: a file that is there, one that isn't, a device, and what is open already, which keeps what it has.
func TestStatsFileWritten(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.WriteFile("old", []byte(strings.Repeat("x", 1000)), 0o600))
	for _, name := range []string{"old", "new"} {
		path, err := statsPath(name)
		require.NoError(t, err)
		require.True(t, filepath.IsAbs(path))
		require.NoError(t, writeStatsFile(path, []byte("counters\n"), 30*time.Second))
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, "counters\n", string(b))
	}
	path, err := statsPath("/dev/null")
	require.NoError(t, err)
	require.NoError(t, writeStatsFile(path, []byte("counters\n"), 30*time.Second))

	log, err := os.Create("log")
	require.NoError(t, err)
	defer log.Close()
	_, err = log.WriteString("before\n")
	require.NoError(t, err)
	path, err = statsPath(fmt.Sprint("/dev/fd/", log.Fd()))
	require.NoError(t, err)
	require.NoError(t, writeStatsFile(path, []byte("counters\n"), 30*time.Second))
	_, err = log.WriteString("after\n")
	require.NoError(t, err)
	b, err := os.ReadFile("log")
	require.NoError(t, err)
	require.Equal(t, "before\ncounters\nafter\n", string(b))
}

// What takes no data, and a named pipe that came later, are given up soon.
func TestStatsFileStuck(t *testing.T) {
	var fds [2]int
	require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	defer unix.Close(fds[0]) // the other end is still being written to
	for err := error(nil); err == nil; {
		_, err = unix.Write(fds[1], make([]byte, 4096))
	}
	path, err := statsPath(fmt.Sprint("/dev/fd/", fds[1]))
	require.NoError(t, err)
	require.ErrorContains(t, writeStatsFile(path, []byte("counters\n"), time.Millisecond), "took no data for 1ms")

	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	require.ErrorIs(t, writeStatsFile(fifo, []byte("counters\n"), 30*time.Second), unix.ENXIO)
	r, err := os.OpenFile(fifo, os.O_RDWR, 0)
	require.NoError(t, err)
	defer r.Close()
	require.ErrorContains(t, writeStatsFile(fifo, []byte("counters\n"), 30*time.Second), "is a named pipe")
}
