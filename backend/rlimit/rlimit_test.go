package rlimit

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The affinity mask of the calling thread counts, not that of the process, and so does GOMAXPROCS.
func TestProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(64))
	var all unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &all))
	require.Equal(t, min(all.Count(), 64), Processors())

	runtime.GOMAXPROCS(1)
	require.Equal(t, 1, Processors())
	runtime.GOMAXPROCS(64)

	one := make(chan int)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		var first unix.CPUSet
		for cpu := range 1024 {
			if all.IsSet(cpu) {
				first.Set(cpu)
				break
			}
		}
		if unix.SchedSetaffinity(0, &first) != nil {
			close(one)
			return
		}
		one <- Processors()
	}()
	require.Equal(t, 1, <-one)
}
