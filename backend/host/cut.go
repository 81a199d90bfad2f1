package host

// A network that is cut, as TCP shows it: the kernel sends again and again and gets no acknowledgement, at pauses that double. A process that is
// stopped is no cut, since its kernel acknowledges.

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Repeats reports that the kernel has sent the first bytes without an acknowledgement again after a pause (RTO), or that none of the bytes to be sent leaves this
// host although the peer has room for them. It says nothing of probes to a peer whose receive buffer is full.
func Repeats(i *unix.TCPInfo) bool {
	if i.Unacked == 0 {
		return i.Notsent_bytes > 0 && i.Snd_mss > 0 && i.Snd_wnd >= i.Snd_mss
	}
	return i.Retransmits > 0
}

// Unanswered notes since when a connection's kernel has sent again in vain, and how many bytes were acknowledged by then.
type Unanswered struct {
	since time.Time
	acked uint64
}

// Look returns true if what was sent again had the time for an answer: two round trips, and a look before this one.
func (u *Unanswered) Look(i *unix.TCPInfo, now time.Time) bool {
	if !Repeats(i) {
		u.since = time.Time{}
		return false
	}
	if u.since.IsZero() || u.acked != i.Bytes_acked { // else the last look may have been long ago, and about another packet
		u.since, u.acked = now, i.Bytes_acked
	}
	return now.Sub(u.since) > 2*time.Duration(i.Rtt)*time.Microsecond
}

// leastRTO is the least time after which the kernel sends again what was not acknowledged; Linux has 200 ms. Receivers put an acknowledgement off for 40 ms; down to
// 20 ms nothing was sent twice for that, of 60 messages 120 ms apart. With 1 % of packets lost (study kv --chaos loss, busy cores) the last of 12 pairs had a good
// request after 75 ms, and after 250 with Linux's own time.
const leastRTO = 60 * time.Millisecond

// RepeatSoon makes the kernel send again after less time. An older kernel goes on as before. Implements TCP_RTO_MIN_US of Linux 6.15.
func RepeatSoon(fd int) {
	const rtoMinUS = 45
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, rtoMinUS, int(leastRTO/time.Microsecond))
}

// The pauses between two requests for a connection: a two-hundredth part of the time that has passed, so that they add little to it. After a cut of 5 s a pause
// of a hundredth was 34 of the 87 ms until a READ over two rails ended (study kv --chaos cut-in,cut, seeds 11 to 13: the last of 8 pairs after 70 to 103 ms
// then, 26 to 50 now, on another machine). In network namespaces with a cut of 0.3 to 6.3 s TCP itself goes on 25 to 1,821 ms after its end (with
// TCP_RTO_MAX_MS=1000, the least, up to 771; TCP_THIN_LINEAR_TIMEOUTS changes nothing), and the first of these requests is answered within 35 ms.
const (
	leastRequest = 20 * time.Millisecond
	mostRequest  = 500 * time.Millisecond
)

// shareOfRequest is the least pause for each address that this process waits for: all together ask 2,000 times a second, since a request takes about 80 us of
// processor time. 1,000 addresses took 0.7 of two busy cores.
const shareOfRequest = 500 * time.Microsecond

// lateBy is how late the timer of a request is if this process starves for processor time: the answer to the request before may have come, and waits for a
// goroutine. Then every second request is left out.
const lateBy = 20 * time.Millisecond

// awaited counts the calls of Connect.
var awaited atomic.Int64

// RequestPause is the pause until another request for a connection, after a time without an answer. trip is how long an answer took on this path; 0: unknown.
func RequestPause(waited, trip time.Duration) time.Duration {
	return max(min(max(waited/200, leastRequest), mostRequest), 4*trip)
}

// Connect connects by dial. While a network is cut, TCP repeats a request for a connection after a second, and later after more. So another dial begins
// after each pause, in place of the one before it. The first one goes on, for an answer that takes longer. The first result counts, but for those of dials
// that were given up. There are two at a time, and none on return.
func Connect(ctx context.Context, pause func() time.Duration, dial func(context.Context) (net.Conn, error)) (net.Conn, error) {
	type result struct {
		c   net.Conn
		err error
		of  context.Context
	}
	var all sync.WaitGroup
	defer all.Wait()
	awaited.Add(1)
	defer awaited.Add(-1)
	next := func() time.Duration { return max(pause(), time.Duration(awaited.Load())*shareOfRequest) }
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results, over := make(chan result), make(chan struct{})
	defer close(over)
	begin := func(of context.Context) {
		all.Go(func() {
			c, err := dial(of)
			select {
			case results <- result{c, err, of}:
			case <-over:
				if c != nil {
					c.Close()
				}
			}
		})
	}
	begin(ctx)
	giveUp := context.CancelFunc(func() {})
	defer func() { giveUp() }()
	wait := next()
	timer, due, late := time.NewTimer(wait), time.Now().Add(wait), false
	again := func() {
		wait := next()
		timer.Reset(wait)
		due = time.Now().Add(wait)
	}
	defer timer.Stop()
	for {
		select {
		case r := <-results:
			if r.err == nil || r.of.Err() == nil || r.of == ctx {
				return r.c, r.err
			}
		case <-timer.C:
			if late = !late && time.Since(due) > lateBy; late {
				again()
				continue
			}
			giveUp()
			of, stop := context.WithCancel(ctx)
			giveUp = stop
			begin(of)
			again()
		}
	}
}
