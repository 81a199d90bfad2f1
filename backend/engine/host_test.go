package engine

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gorail/backend/transfer"

	"github.com/stretchr/testify/require"
)

// Work requests that are copied within the post complete there, without a completion event. The rest of the transfer is posted
// at once, even if the application makes no call.
func TestHostAsleep(t *testing.T) {
	t.Parallel()
	h := onHost(t)
	p := h.pair(1 << 20)
	var local, remote []Desc
	for i := range 4000 { // 500 work requests of 128 bytes each
		local = append(local, p.mine.desc(i*32, 16))
		remote = append(remote, p.theirs.desc(i*64, 16))
	}
	x := p.a.prep(transfer.Write, local, remote, "bob")
	x.run("first")
	p.b.expect("ann:first")
	var best time.Duration
	for round := range 8 { // the best of several, because the host may be busy
		for range 20 {
			wakes := p.a.core.Counters()["thread_wakes"]
			time.Sleep(10 * time.Millisecond)
			if p.a.core.Counters()["thread_wakes"] == wakes {
				break // the progress thread sleeps
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
	require.Less(t, best, 100*time.Millisecond, "the rest waits for a timer of the progress thread")
}

// posts posts n times. It checks a transfer only if the transfer has not ended within its post. looks is how often the
// progress thread polled meanwhile.
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

// Transfers that complete within their post need no check. The progress thread does not poll for them, though credits come in.
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
	const posts, credits = 200, 25 // 0.4 ms: most rounds lie within a time slice of a busy host
	fewest := x.posts(posts, "n")
	for round := 0; round < 500 && fewest >= credits; round++ {
		fewest = min(fewest, x.posts(posts, "n"))
	}
	stop.Store(true)
	polls.Wait()
	require.Less(t, fewest, uint64(credits), "polls of the progress thread in 200 posts; 25 of them find a message with credits")
}
