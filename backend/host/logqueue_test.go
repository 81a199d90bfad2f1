package host

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const limit = 30 * time.Second

// output is the pipe that a queue writes to.
type output struct {
	t    testing.TB
	r, w *os.File
	q    *Queue
}

func newOutput(t testing.TB, bytes int, patience time.Duration) *output {
	var fds [2]int
	require.NoError(t, unix.Pipe2(fds[:], unix.O_CLOEXEC))
	o := &output{t: t, r: os.NewFile(uintptr(fds[0]), "r"), w: os.NewFile(uintptr(fds[1]), "w")}
	t.Cleanup(func() { o.r.Close(); o.w.Close() })
	o.q = NewQueue(QueueOptions{Write: LinesTo(fds[1]), Dropped: func(n int) []byte { return fmt.Appendf(nil, "dropped %d\n", n) }, Bytes: bytes,
		Patience: patience, Recovery: time.Hour})
	return o
}

// fill fills the pipe until it takes no more, and returns the number of bytes in it.
func (o *output) fill() int {
	fd := int(o.w.Fd())
	require.NoError(o.t, unix.SetNonblock(fd, true))
	n := 0
	for b := []byte{'\n'}; ; n++ {
		if _, err := unix.Write(fd, b); err != nil {
			require.ErrorIs(o.t, err, unix.EAGAIN)
			break
		}
	}
	require.NoError(o.t, unix.SetNonblock(fd, false))
	return n
}

func (o *output) read(scan *bufio.Scanner) string {
	require.True(o.t, scan.Scan(), scan.Err())
	return scan.Text()
}

// Normally a line is in the output when Write returns.
func TestWritten(t *testing.T) {
	o := newOutput(t, 1<<20, limit)
	for i := range 100 {
		line := fmt.Sprintf("line %d\n", i)
		n, err := o.q.Write([]byte(line))
		require.NoError(t, err)
		require.Equal(t, len(line), n)
		waiting, err := unix.IoctlGetInt(int(o.r.Fd()), unix.TIOCINQ)
		require.NoError(t, err)
		require.Equal(t, len(line), waiting)
		_, err = io.CopyN(io.Discard, o.r, int64(n))
		require.NoError(t, err)
	}
	require.True(t, o.q.Flush(limit))
}

// A full output delays no writer. Queued lines are written later and in order. Dropped lines are counted in their
// place.
func TestStuck(t *testing.T) {
	for _, nonblock := range []bool{false, true} {
		t.Run(fmt.Sprint("nonblock=", nonblock), func(t *testing.T) {
			const room = 100 * 9
			o := newOutput(t, room, time.Millisecond)
			junk := o.fill()
			require.NoError(t, unix.SetNonblock(int(o.w.Fd()), nonblock))
			var kept int
			done := make(chan struct{})
			go func() {
				defer close(done)
				for i := range 5000 {
					fmt.Fprintf(o.q, "%8d\n", i)
				}
			}()
			select {
			case <-done:
			case <-time.After(limit):
				t.Fatal("a writer waits for the output")
			}
			require.False(t, o.q.Flush(time.Millisecond))
			scan := bufio.NewScanner(o.r)
			for range junk {
				require.Empty(t, o.read(scan))
			}
			for kept = 0; kept < room/9; kept++ {
				require.Equal(t, fmt.Sprintf("%8d", kept), o.read(scan))
			}
			require.Equal(t, fmt.Sprintf("dropped %d", 5000-kept), o.read(scan))
			require.True(t, o.q.Flush(limit))
			fmt.Fprintln(o.q, "again")
			require.Equal(t, "again", o.read(scan))
		})
	}
}

// A closed output causes no error. Lines that come after the output is back are written.
func TestClosed(t *testing.T) {
	o := newOutput(t, 1<<20, limit)
	fd := int(o.w.Fd())
	spare, err := unix.Dup(fd)
	require.NoError(t, err)
	defer unix.Close(spare)
	null, err := os.Open("/dev/null") // read-only
	require.NoError(t, err)
	defer null.Close()
	require.NoError(t, unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC))
	fmt.Fprintln(o.q, "nowhere")
	require.NoError(t, unix.Dup3(spare, fd, unix.O_CLOEXEC))
	fmt.Fprintln(o.q, "here")
	require.Equal(t, "here", o.read(bufio.NewScanner(o.r)))
}
