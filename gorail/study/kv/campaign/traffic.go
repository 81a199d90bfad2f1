package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gorail/gorail/measure"
	"gorail/gorail/study/kv/node"
	"gorail/internal/subprocess"
)

// traffic is the requests of all pairs.
type traffic struct {
	c    *campaign
	next atomic.Uint64 // request
	end  context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	all     []request
	good    []time.Duration // of each pair: when its last good request ended
	urgent  []int           // pairs that pause for so long only
	short   time.Duration
	hurried chan struct{} // closed when urgent changes
}

// request is one that has ended.
type request struct {
	pair       int
	began, end time.Duration // by the study's clock
	took       time.Duration // by the decode node's: from the request to the last block
	failed     string
	wrong      string
}

// A pair pauses for its share of a time that grows with the number of pairs: two cores carry this many requests and their comparisons at a load
// of one half. The victim's pairs hardly pause just before a fault, so that requests are in flight, and pause shortly until they have recovered.
const (
	pauseOfPair = 12 * time.Millisecond
	rushPause   = time.Millisecond
	rush        = 100 * time.Millisecond // before a fault
	shortPause  = 20 * time.Millisecond
)

// notifTime is how long a notification may take after its request has ended.
const notifTime = 30 * time.Second

func newTraffic(c *campaign) *traffic {
	return &traffic{c: c, good: make([]time.Duration, len(c.pairs())), end: func() {}, hurried: make(chan struct{})}
}

// start lets all pairs work until stop.
func (t *traffic) start(ctx context.Context) {
	ctx, t.end = context.WithCancel(ctx)
	for _, p := range t.c.pairs() {
		t.wg.Go(func() { t.work(ctx, p) })
	}
}

// stop ends the pairs: each ends its request, at most as long as a request may take.
func (t *traffic) stop() {
	t.end()
	t.wg.Wait()
}

// hurry names the pairs that pause for so long only, those that pause already, too.
func (t *traffic) hurry(pairs []int, pause time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.urgent, t.short = pairs, pause
	close(t.hurried)
	t.hurried = make(chan struct{})
}

// slot is a pair's memory on both sides.
type slot struct {
	request uint64 // that was read last; 0: none
	life    int    // of the prefill node's engine
	busy    chan struct{}
}

// free returns a slot without a request in flight, and waits for one.
func free(ctx context.Context, slots []slot, k int) int {
	for i := range slots {
		n := (k + i) % len(slots)
		select {
		case <-slots[n].busy:
			return n
		default:
		}
	}
	k %= len(slots)
	select {
	case <-slots[k].busy:
	case <-ctx.Done():
	}
	return k
}

// work is one pair. Requests of a prefill node that has ended do not keep it from those of the next.
func (t *traffic) work(ctx context.Context, p int) {
	r := rand.New(rand.NewPCG(t.c.Seed, uint64(p)))
	i, j := t.c.pair(p)
	slots := make([]slot, slotsOfPair)
	none := make(chan struct{})
	close(none)
	for k := range slots {
		slots[k].busy = none
	}
	for k := 0; ; {
		pre, dec := t.c.prefill[i].wait(ctx), t.c.decode[j].wait(ctx)
		k = free(ctx, slots, k+1)
		if pre == nil || dec == nil || ctx.Err() != nil {
			return
		}
		if t.c.prefill[i].now() != pre || t.c.decode[j].now() != dec { // it ended while we waited
			continue
		}
		slots[k].busy = make(chan struct{})
		t.wg.Go(func() { t.one(p, k, &slots[k], pre, dec) })
		select {
		case <-slots[k].busy:
		case <-pre.gone:
		}
		t.ended(ctx, pre, dec)
		t.rest(ctx, p, 0.5+r.Float64())
	}
}

// ended waits while a process has ended by itself: the router sees that, as with those that the study kills.
func (t *traffic) ended(ctx context.Context, members ...*member) {
	for _, m := range members {
		if m.remote || m.alive() {
			continue
		}
		select {
		case <-m.gone:
		case <-ctx.Done():
		}
	}
}

// one is one request.
func (t *traffic) one(p, k int, s *slot, pre, dec *member) {
	defer close(s.busy)
	i, j := t.c.pair(p)
	q := request{pair: p, began: measure.Now()}
	in := node.PromptArgs{Request: t.next.Add(1), Slot: slotsOfPair*j + k, Within: notifTime}
	if s.life == pre.Life {
		in.Before = s.request
	}
	s.request = 0
	var out node.PullOut
	out, q.failed = t.c.request(pre, dec, in, i)
	q.end, q.took, q.wrong = measure.Now(), out.Took, out.Wrong
	if q.failed == "" {
		s.request, s.life = in.Request, pre.Life
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, q)
	if q.failed == "" && q.wrong == "" {
		t.good[p] = q.end
	}
}

// rest pauses as long as the pair is to pause, times share: what is left of it gets shorter when the pair is to hurry.
func (t *traffic) rest(ctx context.Context, p int, share float64) {
	began := time.Now()
	for {
		mean, hurried := t.pause(p)
		left := time.Duration(share*float64(mean)) - time.Since(began)
		if left <= 0 {
			return
		}
		select {
		case <-time.After(left):
		case <-hurried:
		case <-ctx.Done():
			return
		}
	}
}

// pause is how long a pair pauses, as a mean, unless hurried is closed before.
func (t *traffic) pause(p int) (mean time.Duration, hurried <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.Contains(t.urgent, p) {
		return t.short, t.hurried
	}
	return time.Duration(len(t.good)) * pauseOfPair, t.hurried
}

// request is what vLLM's router and connectors do for one prompt.
func (c *campaign) request(pre, dec *member, in node.PromptArgs, prefill int) (out node.PullOut, failed string) {
	limit := 2*c.patience + notifTime
	if _, failed = call[node.None](pre, "Prompt", in, limit); failed != "" {
		return out, "prefill: " + failed
	}
	pull := node.PullArgs{Request: in.Request, Prefill: prefill, Life: pre.Life, Slot: in.Slot, Within: c.patience}
	for range 2 {
		if out, failed = call[node.PullOut](dec, "Pull", pull, limit); failed != "" || !out.Unknown {
			break
		}
		if _, failed = call[node.None](dec, "Meet", pre.Peer, limit); failed != "" {
			return out, "handshake: " + failed
		}
	}
	if failed == "" {
		failed = out.Failed
	}
	if failed == "" && out.Unknown {
		failed = "the decode node does not know the engine that it has met"
	}
	return out, failed
}

// call is a command with a bound. A node that does not answer stays as it is: the study says so, and ends it later.
func call[R any](m *member, method string, args any, limit time.Duration) (out R, failed string) {
	type answer struct {
		out R
		err error
	}
	got := make(chan answer, 1)
	go func() { // it ends with the process
		r, err := subprocess.Call[R](m.Client, method, args, 24*time.Hour)
		got <- answer{r, err}
	}()
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case a := <-got:
		if a.err != nil {
			failed = a.err.Error()
		}
		return a.out, failed
	case <-m.gone:
		return out, "the process was killed"
	case <-t.C:
		return out, fmt.Sprintf("%s: %s hangs: no answer within %v", m.Name, method, limit)
	}
}

// goodAfter says whether a pair has had a good request after a moment.
func (t *traffic) goodAfter(p int, after time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.good[p] > after
}

// lastFailure is the newest failure, in words.
func (t *traffic) lastFailure() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, q := range slices.Backward(t.all) {
		if q.failed != "" {
			return q.failed
		}
	}
	return "no request has ended"
}
