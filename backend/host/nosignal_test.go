package host

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/internal/pattern"
)

// broken makes a descriptor of each kind whose reader is gone.
func broken(t *testing.T) map[string]int {
	t.Helper()
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	require.NoError(t, unix.Close(pipe[0]))
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Close(pair[0]))
	t.Cleanup(func() {
		_ = unix.Close(pipe[1])
		_ = unix.Close(pair[1])
	})
	return map[string]int{"pipe": pipe[1], "socket": pair[1]}
}

// TestNoSignal: no write to a descriptor without a reader raises SIGPIPE. A plain write does: Go's handler passes it on.
func TestNoSignal(t *testing.T) {
	got := make(chan os.Signal, 8)
	signal.Notify(got, unix.SIGPIPE)
	defer signal.Stop(got)
	for name, fd := range broken(t) {
		_, err := unix.Write(fd, []byte("x"))
		require.ErrorIs(t, err, unix.EPIPE, name)
		select {
		case <-got:
		case <-time.After(time.Minute):
			t.Fatalf("%s: a plain write raises no SIGPIPE here", name)
		}
		for range 100 {
			_, err = Write(fd, []byte("x"))
			require.ErrorIs(t, err, unix.EPIPE, name)
		}
		require.Zero(t, pending().Val[0]&set(unix.SIGPIPE).Val[0], name)
	}
	require.Empty(t, got)
}

// TestDefaultAction: with the default action, this process would end.
func TestDefaultAction(t *testing.T) {
	if os.Getenv("NOSIGNAL_CHILD") != "" {
		signal.Reset(unix.SIGPIPE) // Go's own handler ends the process only for descriptors 1 and 2
		fds := broken(t)
		for _, fd := range fds {
			require.NoError(t, unix.Dup3(fd, 2, 0))
			_, err := Write(2, []byte("x"))
			require.ErrorIs(t, err, unix.EPIPE)
		}
		os.Exit(0)
	}
	c := exec.Command(os.Args[0], "-test.run", "TestDefaultAction$")
	c.Env = append(os.Environ(), "NOSIGNAL_CHILD=1")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestSmallFiles: a file that may grow no more is an error, of writes and of calls that set its size. Go ends the process for the signal.
func TestSmallFiles(t *testing.T) {
	if path := os.Getenv("NOSIGNAL_FILE"); path != "" {
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 100, Max: 100}))
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		require.NoError(t, err)
		n, err := Write(fd, make([]byte, 150))
		require.NoError(t, err)
		require.Equal(t, 100, n)
		_, err = Write(fd, make([]byte, 50))
		require.ErrorIs(t, err, unix.EFBIG)
		memory, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		require.ErrorIs(t, Grow(func() error { return unix.Ftruncate(memory, 101) }), unix.EFBIG)
		require.ErrorIs(t, Grow(func() error { return unix.Fallocate(memory, 0, 0, 4096) }), unix.EFBIG)
		require.NoError(t, Grow(func() error { return unix.Ftruncate(memory, 100) }))
		require.Zero(t, pending())
		os.Exit(0)
	}
	c := exec.Command(os.Args[0], "-test.run", "TestSmallFiles$")
	c.Env = append(os.Environ(), "NOSIGNAL_FILE="+t.TempDir()+"/file")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestSend: all bytes arrive though the reader is slow, a deadline ends a Send, and so does a reader that is gone.
func TestSend(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	dial := func() (here, there *net.TCPConn) {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		d, err := l.Accept()
		require.NoError(t, err)
		return c.(*net.TCPConn), d.(*net.TCPConn)
	}
	here, there := dial()
	defer there.Close()
	text := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	read := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(there)
		read <- b
	}()
	n, err := Writer(here).Write(text)
	require.NoError(t, err)
	require.Equal(t, len(text), n)
	require.NoError(t, here.Close())
	pattern.Same(t, text, <-read)

	here, there = dial()
	defer here.Close()
	require.NoError(t, here.SetWriteDeadline(time.Now().Add(50*time.Millisecond)))
	n, err = Send(here, text)
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout())
	require.Less(t, n, len(text))

	require.NoError(t, here.SetWriteDeadline(time.Time{}))
	require.NoError(t, there.SetLinger(0))
	require.NoError(t, there.Close())
	for err = nil; err == nil; {
		_, err = Send(here, []byte("x"))
	}
	require.True(t, errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET), err)
	_, err = Send(here, []byte("x"))
	require.Error(t, err)
	require.NoError(t, here.Close())
	_, err = Send(here, []byte("x"))
	require.ErrorIs(t, err, net.ErrClosed)
}
