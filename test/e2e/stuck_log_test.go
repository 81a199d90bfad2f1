package e2e

import (
	"bufio"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/nixlapi"
	"gorail/test/testenv"
	"gorail/test/worker"
)

// fullPipe makes a pipe that blocks a writer until it is read. It returns the number of empty lines in the pipe.
func fullPipe(t *testing.T) (r, w *os.File, lines int) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	fd := int(w.Fd())
	require.NoError(t, unix.SetNonblock(fd, true))
	for b := []byte{'\n'}; ; lines++ {
		if _, err := unix.Write(fd, b); err != nil {
			require.ErrorIs(t, err, unix.EAGAIN)
			break
		}
	}
	require.NoError(t, unix.SetNonblock(fd, false))
	return r, w, lines
}

// TestStuckLog: nobody reads the standard error of a process. New peers, transfers and the end of the engine are not
// delayed. The log lines arrive when it is read.
func TestStuckLog(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"info", "debug"} {
		t.Run(level, func(t *testing.T) {
			env := ours(t)
			r, w, lines := fullPipe(t)
			p := &pairOf{env: env, ini: agent(process(t, worker.Options{Env: env, Stderr: w, Setenv: []string{"GORAIL_LOG=" + level}}), env, "alice"),
				tgt: start(t, "bob")}
			require.NoError(t, w.Close())
			p.tgt.Polling(true)
			const size = 64 << 10
			a, b := p.buffers(size)
			eachOp(t, func(t *testing.T, op nixlapi.Op) {
				for i := range 20 {
					x := p.ini.Xfer(worker.XferSpec{Op: op, Local: a.All(), Remote: b.All(), Peer: "bob", Notif: []byte(fmt.Sprint(op, i))})
					x.Do(limit)
					require.NoError(t, x.Release())
				}
			})
			p.tgt.WaitNotifs(40, limit)
			for i := range 3 {
				c := start(t, fmt.Sprint("carol", i))
				c.Polling(true)
				p.ini.Learn(c)
				require.NoError(t, p.ini.GenNotif(fmt.Sprint("carol", i), []byte("hello")))
				c.WaitNotifs(1, limit)
			}
			begun := time.Now()
			require.NoError(t, p.ini.Close())
			require.Less(t, time.Since(begun), testenv.Patient(5*time.Second))

			for scan := bufio.NewScanner(r); ; lines-- {
				require.True(t, scan.Scan(), "the output ends")
				if line := scan.Text(); line != "" {
					require.Zero(t, lines)
					require.Contains(t, line, "backend=GORAIL agent=alice")
					break
				}
			}
		})
	}
}
