package transfer

import (
	"sync"
	"time"
)

// rates are the measured speeds of transfers to a peer: a time for small ones and a rate for large ones. Each is a moving
// average over about eight transfers.
type rates struct {
	mu    sync.Mutex
	small float64 // seconds; 0: none measured
	rate  float64 // bytes a second; 0: none measured
}

// smallBytes is the largest transfer whose time counts as latency. Larger transfers count for the rate.
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
