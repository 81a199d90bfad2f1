package transfer

import (
	"math"
	"sync"
	"time"

	"gorail/backend/errcode"
	"gorail/backend/rails"
)

// estimate returns the expected time for that many bytes. measured is false if the guess decides the result.
func (r *rates) estimate(bytes uint64, guess speed) (d time.Duration, measured bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, rate := r.small, r.rate
	measured = s > 0
	if bytes > smallBytes {
		measured = rate > 0
	}
	if s == 0 {
		s = guess.latency
	}
	if rate == 0 {
		rate = guess.rate
	}
	return max(time.Duration((s+float64(bytes)/rate)*1e9), time.Microsecond), measured
}

// sample records the duration of the last run, once. Under t.mu, while the transfer is not running.
func (t *Transfer) sample() {
	posted := t.x.Posted()
	took, exact := t.x.Took()
	if posted != t.sampled && exact && !t.x.Failed() {
		t.peer.rates.add(t.bytes, took)
	}
	t.sampled = posted
}

// Estimate returns the expected duration of the transfer and its margin. Earlier transfers to the same peer give the numbers.
// Before the first one, the link speeds do. Implements estimateXferCost.
func (tab *Table) Estimate(handle uint64) (duration, margin time.Duration, err error) {
	t, err := tab.Get(handle)
	if err != nil {
		return 0, 0, errcode.UnknownTransfer.Errorf("estimate: %w", err)
	}
	t.mu.Lock()
	if !t.freed() && !t.x.Running() {
		t.sample()
	}
	guess := t.expected()
	t.mu.Unlock()
	d, measured := t.peer.rates.estimate(t.bytes, guess)
	if !measured {
		return d, d + 10*time.Microsecond, nil
	}
	return d, d/2 + 10*time.Microsecond, nil
}

// speed is the expected speed of a path to a peer.
type speed struct {
	latency float64 // seconds
	rate    float64 // bytes a second
}

// Speeds of devices without a link speed, and of paths where the processor is slower than the link. Machines with two or more
// cores reach them.
var (
	gpuCopies  = speed{10e-6, 100e9}  // between GPUs of one host
	hostCopies = speed{3e-6, 8e9}     // shared memory and CMA
	rdmaLink   = speed{5e-6, 12.5e9}  // unknown link speed: 100 Gbit/s
	socketLink = speed{50e-6, 1.25e9} // unknown link speed: 10 Gbit/s
)

// socketsMost limits the estimate for one connection, whatever the link speed.
const socketsMost = 2.5e9

// expected returns the speed of all links together that can carry the transfer. Under t.mu.
func (t *Transfer) expected() speed {
	p, c := t.peer, t.class
	if t.staged {
		c = Class{} // the bytes go through bounce buffers in host memory
	}
	all := speed{latency: math.Inf(1)}
	for _, pair := range p.Pairs() {
		if own := t.tab.Rails.List[pair.Own]; moves(own, c, t.bulk) {
			s := speedOf(own, p.Mbps(own, pair.Peer), t.bulk)
			all = speed{min(all.latency, s.latency), all.rate + s.rate}
		}
	}
	if all.rate == 0 {
		all = socketLink
	}
	if t.staged { // each byte is copied once more, and the transfer waits for that copy
		all = speed{2 * all.latency, all.rate / 2}
	}
	return all
}

func speedOf(r *rails.Rail, mbps uint64, bulk bool) speed {
	d, link := r.Device(), float64(mbps)*1e6/8
	switch {
	case bulk:
		return gpuCopies
	case d.Host:
		return hostCopies
	case d.Hardware && link > 0:
		return speed{rdmaLink.latency, link}
	case d.Hardware:
		return rdmaLink
	case link > 0:
		return speed{socketLink.latency, min(link, socketsMost)}
	case d.Loopback:
		return speed{socketLink.latency, socketsMost}
	}
	return socketLink
}

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
