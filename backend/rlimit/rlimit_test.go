package rlimit

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The affinity mask of the calling thread counts, not that of the process, and so does what Go took when it started, also after CapProcs.
func TestProcessors(t *testing.T) {
	defer func(old, procs int) { quota = old; runtime.GOMAXPROCS(procs) }(quota, runtime.GOMAXPROCS(0))
	quota = 64
	CapProcs()
	require.Equal(t, mostProcs, runtime.GOMAXPROCS(0))
	require.Equal(t, 64, Quota())
	var all unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &all))
	require.Equal(t, min(all.Count(), 64), Processors())

	quota = 1
	require.Equal(t, 1, Processors())
	quota = 64

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
