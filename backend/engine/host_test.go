package engine

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorail/backend/transfer"

	"github.com/stretchr/testify/require"
)

// Pieces that are copied within the post complete there, and no event tells: the rest of them goes out at once all the same, whether the
// application looks or not.
func TestHostAsleep(t *testing.T) {
	t.Parallel()
	h := onHost(t)
	p := h.pair(1 << 20)
	var local, remote []Desc
	for i := range 4000 { // 500 work requests, of 64,000 bytes together
		local = append(local, p.mine.desc(i*32, 16))
		remote = append(remote, p.theirs.desc(i*64, 16))
	}
	x := p.a.prep(transfer.Write, local, remote, "bob")
	x.run("first")
	p.b.expect("ann:first")
	var best time.Duration
	for round := range 8 { // of several, for the machine may be busy
		for range 20 {
			wakes := p.a.core.Counters()["thread_wakes"]
			time.Sleep(10 * time.Millisecond)
			if p.a.core.Counters()["thread_wakes"] == wakes {
				break // the thread sleeps
			}
		}
		start := time.Now()
		x.post("n")
		p.b.expect("ann:n")
		if took := time.Since(start); round == 0 || took < best {
			best = took
		}
		require.Equal(t, done, x.wait())
	}
	require.Less(t, best, 100*time.Millisecond, "it waits for the thread to look by itself")
}

// posts posts so often, without a check where none is needed, and gives how often the thread looked meanwhile.
func (r *request) posts(n int, notif ...string) (looks uint64) {
	before := r.a.core.Counters()["thread_looks"]
	for range n {
		rc, err := r.Post(notif...)
		require.NoError(r.a.t, err)
		if int(rc) == inProg {
			r.wait()
		}
	}
	return r.a.core.Counters()["thread_looks"] - before
}

// Who posts what completes in its post need not check; the engine's thread keeps away all the same, though credits come in.
func TestHostPoster(t *testing.T) {
	h := onHost(t)
	p := h.pair(4 << 10)
	x := p.a.whole(transfer.Write, p.mine, p.theirs).warm()
	var stop atomic.Bool
	var polls sync.WaitGroup
	polls.Go(func() {
		for !stop.Load() {
			p.b.core.TakeNotifs()
		}
	})
	fewest := x.posts(2000, "n")
	for round := 0; round < 50 && fewest >= 100; round++ { // the machine may be busy
		fewest = min(fewest, x.posts(2000, "n"))
	}
	stop.Store(true)
	polls.Wait()
	require.Less(t, fewest, uint64(100), "in 2,000 posts, 250 of which find a message with credits")
}
