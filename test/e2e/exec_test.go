package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gorail/nixlapi"
	"gorail/test/hostmem"
	"gorail/test/worker"
)

// TestTargetExecutes: the target's process calls exec of a program with memory at the same addresses. The process keeps its number.
// A request that begins a look (4 ms) after the program does not succeed, and nothing writes to the program's memory from then on.
func TestTargetExecutes(t *testing.T) {
	t.Parallel()
	const size, look = 1 << 20, 5 * time.Millisecond
	for _, block := range []uint64{4 << 10, size} {
		o := worker.Options{Setenv: []string{"GORAIL_PROVIDER=sm"}}
		alice, bob := agentOf(t, "alice", o), agentOf(t, "bob", o)
		a, b := alice.Buffer(size, seedA), bob.Alloc(size, hostmem.Pinned)
		b.Fill(seedB)
		require.NoError(t, bob.Register(b.All()))
		alice.Learn(bob)
		write := alice.Xfer(worker.XferSpec{Op: nixlapi.Write, Local: a.Span(0, block), Remote: b.Span(0, block), Peer: "bob"})
		read := alice.Xfer(worker.XferSpec{Op: nixlapi.Read, Local: a.Span(0, block), Remote: b.Span(0, block), Peer: "bob"})
		write.Do(limit)
		read.Do(limit)
		next := bob.Become(t.TempDir(), size)
		next.Begin()
		require.True(t, worker.Eventually(limit, next.Runs)) // no request meanwhile: the first one that fails ends the link
		began := time.Now()
		next.Mark()
		for time.Since(began) < look {
			time.Sleep(look)
		}
		a.Fill(seedA)
		for range 5 {
			require.False(t, ends(read), "a READ of %d bytes of another program succeeds", block)
			require.False(t, ends(write), "a WRITE of %d bytes to another program succeeds", block)
		}
		a.Want(seedA)
		require.Zero(t, next.Changed(), "bytes of the program have changed")
	}
}

// ends posts a request, and reports whether it has succeeded.
func ends(x *worker.Xfer) bool {
	s := x.Post()
	if s == nixlapi.InProgress {
		s = x.Wait(limit)
	}
	return s == nixlapi.Success
}
