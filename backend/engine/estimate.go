package engine

import (
	"sync"
	"time"

	"gorail/backend/status"
	"gorail/backend/xfer"
)

// rates are what transfers to a peer have taken so far: a time for small ones and a rate for large ones, each a moving
// average over about eight transfers.
type rates struct {
	mu    sync.Mutex
	small float64 // seconds; 0: none yet
	rate  float64 // bytes a second; 0: none yet
}

// smallBytes parts transfers whose time is latency from those whose time is bytes.
const smallBytes = 64 << 10

func (r *rates) add(bytes uint64, took time.Duration) {
	s := took.Seconds()
	if s <= 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if bytes <= smallBytes {
		r.small = average(r.small, s)
	} else {
		r.rate = average(r.rate, float64(bytes)/s)
	}
}

func average(old, sample float64) float64 {
	if old == 0 {
		return sample
	}
	return old + (sample-old)/8
}

// estimate gives the time for so many bytes; false: nothing was measured yet.
func (r *rates) estimate(bytes uint64) (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.small
	if r.rate > 0 {
		s += float64(bytes) / r.rate
	}
	return time.Duration(s * 1e9), s > 0
}

// sample notes how long the last run took, once. Under t.mu, with the transfer not running.
func (t *transfer) sample() {
	posted := t.x.Posted()
	took, exact := t.x.Took()
	if posted != t.sampled && exact && !t.x.Failed() {
		t.remote.rates.add(t.bytes, took)
	}
	t.sampled = posted
}

// Estimate is what the transfer should take, from earlier transfers to the same peer. ErrNotSupported before there was
// any. Implements estimateXferCost.
func (e *Engine) Estimate(handle uint64) (duration, margin time.Duration, err error) {
	rec, err := e.xfers.Get(xfer.FromUint64(handle))
	if err != nil {
		return 0, 0, status.Errorf(status.ErrNotFound, "estimate: %w", err)
	}
	t := rec.Value
	t.mu.Lock()
	if !t.freed && !t.x.Running() {
		t.sample()
	}
	t.mu.Unlock()
	d, ok := t.remote.rates.estimate(t.bytes)
	if !ok {
		return 0, 0, status.Errorf(status.ErrNotSupported, "estimate: no transfer to peer %q has ended yet", t.remote.name)
	}
	return d, d/2 + 10*time.Microsecond, nil
}
