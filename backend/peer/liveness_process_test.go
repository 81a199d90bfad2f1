package peer

import (
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"gorail/backend/host"
	"gorail/backend/wire"
	"gorail/internal/procstat"
	"gorail/test/nofile"
)

// begin starts a process that does nothing, and returns what identifies it.
func begin(t *testing.T) (*exec.Cmd, wire.Process) {
	child := exec.Command("sleep", "1000")
	require.NoError(t, child.Start())
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	p := wire.Process{PID: uint32(child.Process.Pid), NS: Self().NS}
	var err error
	p.Start, err = startTime(strconv.Itoa(child.Process.Pid))
	require.NoError(t, err)
	return child, p
}

// The pid of a process that has ended may be another's: the start time distinguishes the two.
func TestOpenProcess(t *testing.T) {
	child, p := begin(t)
	fd, err := openProcess(p)
	require.NoError(t, err)
	require.GreaterOrEqual(t, fd, 0)
	defer unix.Close(fd)

	earlier := p
	earlier.Start--
	gone, err := openProcess(earlier)
	require.NoError(t, err)
	require.Negative(t, gone)

	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	require.True(t, host.ProcessEnded(fd))
	gone, err = openProcess(p)
	require.NoError(t, err)
	require.Negative(t, gone)
}

// descriptors counts the open descriptors of this process.
func descriptors(t *testing.T) int {
	all, err := procstat.FDs()
	require.NoError(t, err)
	return len(all)
}

// Each watch of a process is told of its end once, unless it was ended before; a stopped process has not ended. All share one descriptor, and
// none is left.
func TestWatch(t *testing.T) {
	if !nofile.Alone(t) {
		return
	}
	const each = 50
	dies, dying := begin(t)
	stays, staying := begin(t)
	before, goroutines := descriptors(t), procstat.Goroutines()
	require.NoError(t, stays.Process.Signal(unix.SIGSTOP))
	var told, wrong atomic.Int32
	var stops []func()
	for range each {
		_, alive, err := watchProcess(dying, func() { told.Add(1) })
		require.NoError(t, err)
		require.True(t, alive)
		stop, _, err := watchProcess(dying, func() { wrong.Add(1) })
		require.NoError(t, err)
		stop()
		stop, _, err = watchProcess(staying, func() { wrong.Add(1) })
		require.NoError(t, err)
		stops = append(stops, stop)
	}
	require.Equal(t, before+3, descriptors(t), "two processes, and what waits for them")
	require.Equal(t, goroutines+1, procstat.Goroutines())
	require.NoError(t, dies.Process.Kill())
	_ = dies.Wait()
	require.Eventually(t, func() bool { return told.Load() == each }, time.Minute, time.Millisecond)
	_, alive, err := watchProcess(dying, func() { wrong.Add(1) })
	require.NoError(t, err)
	require.False(t, alive)
	require.Equal(t, before+2-1, descriptors(t), "os/exec had one of the process that died")
	for _, stop := range stops {
		stop()
		stop() // no harm
	}
	for until := time.Now().Add(time.Minute); procstat.Goroutines() > goroutines && time.Now().Before(until); { // Eventually has a goroutine
		time.Sleep(time.Millisecond)
	}
	require.Equal(t, goroutines, procstat.Goroutines())
	require.Equal(t, before-1, descriptors(t))
	require.EqualValues(t, each, told.Load())
	require.Zero(t, wrong.Load())
}

// Watches begin, end and are told at once.
func TestWatchRace(t *testing.T) {
	for range 20 {
		child, p := begin(t)
		var all sync.WaitGroup
		var told atomic.Int32
		var kept atomic.Int32
		for i := range 8 {
			all.Go(func() {
				for range 20 {
					stop, alive, err := watchProcess(p, func() { told.Add(1) })
					assert.NoError(t, err)
					if alive && i%2 == 0 {
						stop()
					} else if alive {
						kept.Add(1)
					}
				}
			})
		}
		_ = child.Process.Kill()
		_ = child.Wait()
		all.Wait()
		require.Eventually(t, func() bool { return told.Load() >= kept.Load() }, time.Minute, time.Millisecond)
	}
	require.Empty(t, watches.all)
}

func TestVisible(t *testing.T) {
	own := &wire.ConnBlob{Boot: "b", Process: wire.Process{PID: 1, NS: 2, Start: 3}}
	other := wire.Process{PID: 9, NS: 2, Start: 3}
	require.True(t, processVisible(own, "b", other))
	require.False(t, processVisible(own, "c", other), "another host")
	require.False(t, processVisible(own, "b", own.Process), "ourselves")
	require.False(t, processVisible(own, "b", wire.Process{PID: 9, NS: 4}), "another pid namespace")
	require.False(t, processVisible(own, "b", wire.Process{NS: 2}), "unknown pid")
	require.False(t, processVisible(&wire.ConnBlob{}, "", wire.Process{PID: 9}), "no boot id")
}
