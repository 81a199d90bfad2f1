package count_test

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/gorail/count"
	"gorail/gorail/count/internal/native"
)

// TestAllocs: calls of malloc in C of this program and in the C library are counted, each once, also of other threads. Go's heap is not.
func TestAllocs(t *testing.T) {
	const n = 1000
	before := count.Now()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			runtime.LockOSThread()
			native.Allocate(n)
		})
	}
	all.Wait()
	used := count.Now().Sub(before)
	require.GreaterOrEqual(t, used.Allocs, uint64(4*n*native.Kinds))
	require.Less(t, used.Allocs, uint64(4*n*native.Kinds+n), "and little else")

	before = count.Now()
	var kept [][]byte
	for range n {
		kept = append(kept, make([]byte, 100))
	}
	require.Less(t, count.Now().Sub(before).Allocs, uint64(n/2))
	require.Len(t, kept, n)
}

// TestContended: a lock that another thread holds is counted, and a free one is not.
func TestContended(t *testing.T) {
	for _, kind := range native.Locks {
		before := count.Now()
		native.Free(kind, 1000)
		require.Zero(t, count.Now().Sub(before).Contended, kind)
		native.Held(kind, count.Func, count.Size, 1)
		require.Positive(t, count.Now().Sub(before).Contended, kind)
	}
}

// TestSwitches: a thread that sleeps is counted.
func TestSwitches(t *testing.T) {
	before := count.Now()
	time.Sleep(time.Millisecond)
	require.Positive(t, count.Now().Sub(before).Switches)
}
