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
	fewest, least := uint64(1), uint64(0)
	for round := 0; round < 50 && fewest > least; round++ {
		began := time.Now()
		fewest = x.posts(2000, "n")
		least = 100 + 2*uint64(time.Since(began).Milliseconds()) // on a busy host posts take long; the thread looks once a millisecond at most
	}
	stop.Store(true)
	polls.Wait()
	require.LessOrEqual(t, fewest, least, "polls of the progress thread in 2,000 posts; 250 of them find a message with credits")
}
