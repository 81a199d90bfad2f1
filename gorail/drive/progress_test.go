package drive

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// terminal opens a pseudo terminal: data written to slave can be read from master.
func terminal(t *testing.T) (master, slave *os.File) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	c, err := master.SyscallConn()
	require.NoError(t, err)
	var n int
	require.NoError(t, c.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}))
	require.NoError(t, err)
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

// TestProgress: a terminal shows a bar, which messages do not break. Elsewhere it prints a line every few seconds.
func TestProgress(t *testing.T) {
	run := func(to *os.File) {
		p := NewProgress(to)
		p.Expect(2)
		p.Step("GORAIL WRITE 4 KiB")
		p.Say("it failed")
		p.Step("UCX WRITE 4 KiB")
		p.End()
	}
	master, slave := terminal(t)
	require.NoError(t, unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}))
	run(slave)
	var text strings.Builder
	buf := make([]byte, 4096)
	require.NoError(t, master.SetReadDeadline(time.Now().Add(10*time.Second)))
	for !strings.Contains(text.String(), "UCX WRITE 4 KiB") {
		n, err := master.Read(buf)
		require.NoError(t, err, "%q", text.String())
		text.Write(buf[:n])
	}
	for _, want := range []string{"GORAIL WRITE 4 KiB", "1/2", "\rit failed\r\n", "UCX WRITE 4 KiB"} {
		require.Contains(t, text.String(), want)
	}

	file, err := os.Create(t.TempDir() + "/log")
	require.NoError(t, err)
	run(file)
	require.NoError(t, file.Close())
	got, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.Equal(t, "1 of 2: GORAIL WRITE 4 KiB\nit failed\n", string(got))
}
