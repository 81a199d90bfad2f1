package transfer

import (
	"sync"
	"time"
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
