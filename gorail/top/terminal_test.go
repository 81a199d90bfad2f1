package top

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/gorail/live"
)

// terminal makes a pseudo terminal. The user has the first end.
func terminal(t *testing.T, rows, columns uint16) (user, program *os.File) {
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if os.IsNotExist(err) {
		t.Skip("no /dev/ptmx")
	}
	require.NoError(t, err)
	t.Cleanup(func() { user.Close() })
	raw, err := user.SyscallConn()
	require.NoError(t, err)
	number := 0
	require.NoError(t, raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}))
	require.NoError(t, err)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	resize(t, user, rows, columns)
	return user, program
}

func resize(t *testing.T, user *os.File, rows, columns uint16) {
	raw, err := user.SyscallConn()
	require.NoError(t, err)
	var failed error
	require.NoError(t, raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	}))
	require.NoError(t, failed)
}

// until reads what the program writes up to a word, and returns it.
func until(t *testing.T, user *os.File, word string) string {
	t.Helper()
	var got strings.Builder
	require.NoError(t, user.SetReadDeadline(time.Now().Add(time.Minute)))
	for b := make([]byte, 4096); !strings.Contains(got.String(), word); {
		n, err := user.Read(b)
		got.Write(b[:n])
		require.NoError(t, err, "%q is not in %q", word, got.String())
	}
	return got.String()
}

// A user looks, makes the terminal wider, scrolls and quits. With NO_COLOR there are no colours.
func TestTerminal(t *testing.T) {
	for _, env := range [][]string{{"TERM=xterm-256color"}, {"TERM=xterm-256color", "NO_COLOR=1"}} {
		user, program := terminal(t, 24, 80)
		var reads atomic.Uint64
		read := func(context.Context) ([]live.Engine, error) {
			return []live.Engine{answer("s", engine("ann", reads.Add(1)))}, nil
		}
		ended := make(chan error, 1)
		go func() { ended <- Run(t.Context(), program, program, env, read, LeastInterval) }()
		seen := until(t, user, "tcp/eth1")
		resize(t, user, 10, 132)
		require.NoError(t, unix.Kill(os.Getpid(), unix.SIGWINCH)) // the kernel tells only processes of the terminal's session
		seen += until(t, user, "3 errors 1 fences")
		_, err := user.WriteString("j")
		require.NoError(t, err)
		seen += until(t, user, "1 lines above")
		require.Equal(t, len(env) == 1, regexp.MustCompile(`\x1b\[(\d+;)*3\dm`).MatchString(seen), "%q", seen)
		require.Eventually(t, func() bool { return reads.Load() > 2 }, time.Minute, time.Millisecond, "it reads again and again")
		_, err = user.WriteString("q")
		require.NoError(t, err)
		until(t, user, "\x1b[?1049l") // the screen of before
		require.NoError(t, <-ended)
	}
}

func TestNoTerminal(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	require.ErrorContains(t, Run(t.Context(), r, w, nil, nil, time.Second), "gorail top --once")
}
