package staging

import (
	"sync"
	"time"
)

// paceKey identifies what a pace measures.
type paceKey struct {
	here, there uint64 // GPUs
	read        bool
}

// pace decides whether packing makes chunks between two GPUs faster, with compression=auto: it measures how many bytes of the application move in
// a window of time, packed and in clear. The rules are those of provider/tcp/sock/pace.c.
//
// A window has chunks of one way, and begins when the first of them has ended. It ends with paceWindow bytes, and counts if chunks were always
// under way, but for short pauses. Packing stays while it is paceKeep faster than what was measured in clear. If it loses, it is tried again after
// a pause that doubles.
type pace struct {
	always bool // compression=on

	mu      sync.Mutex
	packing bool       // the next chunk is packed
	rate    [2]float64 // bytes a second, in clear and packed; 0: not known
	sample  float64    // the first of two windows in clear while packing wins
	since   time.Time  // the window began; zero: the next chunk of its way begins it
	bytes   uint64     // of the window
	windows int        // packed ones since packing began
	next    time.Time  // packing has lost until then; zero: it has not
	lost    int        // in a row
	busy    int        // chunks under way
	idle    time.Time  // since when none is
}

const (
	// What a ring of 16 slots of 4 MiB has in flight, since chunks end in bursts: with 32 MiB TestPace fails. Not measured on GPUs.
	paceWindow   = 64 << 20
	paceKeep     = 1.03
	paceWeight   = 0.25
	shortPause   = time.Millisecond // between two transfers of a loop
	clearFirst   = 4                // windows after which a pair that packs measures one in clear
	clearEvery   = 64               // ... and then again: 3 % of the gain, for two windows
	firstPause   = time.Second
	pauseDoubles = 6 // a minute
)

// begin begins a chunk, and says whether it is packed.
func (p *pace) begin(now time.Time) (packs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy == 0 && now.Sub(p.idle) >= shortPause {
		p.since = time.Time{}
	}
	p.busy++
	return p.always || p.packing
}

// ended ends a chunk that began with packs. ok: its bytes have moved.
func (p *pace) ended(packs, ok bool, bytes uint64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	p.idle = now
	if p.always {
		return
	}
	if !ok || packs != p.packing { // it failed, or began before the window
		p.since = time.Time{}
		return
	}
	if p.since.IsZero() {
		p.since, p.bytes = now, 0
		return
	}
	p.bytes += bytes
	if p.bytes < paceWindow || !now.After(p.since) {
		return
	}
	is := float64(p.bytes) / now.Sub(p.since).Seconds()
	p.since, p.bytes = now, 0
	p.measured(is, now)
}

// measured takes the rate of a window, and chooses the way of the next one.
func (p *pace) measured(is float64, now time.Time) {
	rate := &p.rate[0]
	if p.packing {
		rate = &p.rate[1]
	}
	if p.samples() { // of two windows the slower one counts, at once
		first := p.sample
		if p.sample = 0; first == 0 {
			p.sample = is
			return
		}
		if is = min(is, first); is > *rate {
			*rate = is
		}
	}
	if *rate == 0 {
		*rate = is
	}
	*rate += paceWeight * (is - *rate)
	if way := p.choose(now); way != p.packing {
		p.packing, p.since = way, time.Time{}
	}
}

// samples: a pair that packs measures in clear now.
func (p *pace) samples() bool { return !p.packing && p.rate[1] > 0 && p.next.IsZero() }

func (p *pace) choose(now time.Time) (packs bool) {
	wins := p.rate[1] >= paceKeep*p.rate[0]
	switch {
	case p.packing && wins:
		p.lost, p.next = 0, time.Time{}
		p.windows++
		return p.windows != clearFirst && p.windows%clearEvery != 0
	case p.packing:
		return p.lose(now)
	case p.samples():
		return wins || p.lose(now)
	case now.Before(p.next):
		return false
	}
	p.rate[1], p.windows = 0, 0
	return true
}

func (p *pace) lose(now time.Time) bool {
	p.next = now.Add(firstPause << p.lost)
	p.lost = min(p.lost+1, pauseDoubles)
	return false
}
