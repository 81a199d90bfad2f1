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
// a window, packed and in clear. The rules are those of provider/tcp/sock/pace.c.
//
// A window has chunks of one way. After a change of the way it begins when as many have ended as a ring has slots: what was under way has given
// the first ones time. It ends with paceWindow bytes and paceTime in which chunks were
// under way; pauses do not count. A trial has windows of both ways in turn, so that what changes meanwhile changes both. Packing stays while it is
// paceKeep faster in a trial, and in the windows behind it: GPUs pack ahead of a wire that is still busy with chunks in clear, so that a trial alone
// took packing at 0.85 of the wire's pace for faster. If it loses, there is no trial for a pause that doubles.
type pace struct {
	always bool // compression=on

	mu      sync.Mutex
	packing bool      // the next chunk is packed
	busy    int       // chunks under way
	skip    int       // chunks of the way that are to end before a window begins
	open    bool      // a window has begun
	since   time.Time // its time runs since then; zero while no chunk is under way
	window  paced     // what it has had
	trial   [2]paced  // windows of the trial, in clear and packed
	proof   paced     // windows behind a trial that packing has won
	step    int       // of a trial; 0: there is none
	left    int       // packed windows until the next trial
	next    time.Time // no trial before
	lost    int       // trials in a row
}

// paced are bytes, and the time that they took.
type paced struct {
	bytes uint64
	took  time.Duration
}

func (p *paced) add(q paced) { p.bytes, p.took = p.bytes+q.bytes, p.took+q.took }

func (p *paced) rate() float64 { return float64(p.bytes) / float64(p.took+1) }

const (
	// Half of what a ring of 16 slots of 4 MiB has in flight. TestPace passes with 4 to 64 MiB; not measured on GPUs.
	paceWindow   = 32 << 20
	paceTime     = 20 * time.Millisecond // as sock/pace.c has measured
	paceTrial    = 8                     // windows: in clear, packed, in clear ...
	paceEach     = 256                   // packed windows between two trials: auto moves 0.987 of what on does, with 128 0.976 (TestPace, 3 GB/s)
	paceProof    = 12                    // of them prove the trial, but the first four
	paceKeep     = 1.03
	paceHopeless = 0.7 // of the pace in clear, after one window of each way
	firstPause   = time.Second
	pauseDoubles = 6 // a minute
)

// begin begins a chunk, and says whether it is packed.
func (p *pace) begin(now time.Time) (packs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy++; p.busy == 1 && p.open {
		p.since = now
	}
	return p.always || p.packing
}

// ended ends a chunk that began with packs. ok: its bytes have moved.
func (p *pace) ended(packs, ok bool, bytes uint64, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	if p.always {
		return
	}
	switch {
	case !ok || packs != p.packing: // it failed, or began before the window
		p.open, p.window = false, paced{}
	case p.skip > 0:
		p.skip--
	case !p.open:
		p.open, p.since, p.window = true, now, paced{}
	default:
		p.window.add(paced{bytes, now.Sub(p.since)})
		p.since = now
		if p.window.bytes >= paceWindow && p.window.took >= paceTime {
			p.windowEnds(now)
			p.open, p.window = packs == p.packing, paced{}
			if !p.open {
				p.skip = slotsOfRing
			}
		}
	}
}

func (p *pace) windowEnds(now time.Time) {
	switch {
	case p.step > 0:
		p.tried(now)
	case p.packing:
		p.left--
		switch ended := paceEach - p.left; {
		case p.left == 0: // a trial begins in clear
			p.packing, p.trial, p.step = false, [2]paced{}, 1
		case ended <= 4:
		case ended < paceProof:
			p.proof.add(p.window)
		case ended == paceProof && p.proof.rate() < paceKeep*p.trial[0].rate():
			p.loses(now)
		case ended == paceProof:
			p.lost = 0
		}
	case !now.Before(p.next):
		p.trial, p.step = [2]paced{}, 1
		p.tried(now)
	}
}

// tried takes a window of a trial.
func (p *pace) tried(now time.Time) {
	way := 0
	if p.packing {
		way = 1
	}
	p.trial[way].add(p.window)
	gain := p.trial[1].rate() / p.trial[0].rate()
	switch p.step++; {
	case p.step == 3 && gain < paceHopeless, p.step > paceTrial && gain < paceKeep:
		p.loses(now)
	case p.step > paceTrial:
		p.packing, p.step, p.left, p.proof = true, 0, paceEach, paced{}
	default:
		p.packing = !p.packing
	}
}

func (p *pace) loses(now time.Time) {
	p.packing, p.step = false, 0
	p.next = now.Add(firstPause << p.lost)
	p.lost = min(p.lost+1, pauseDoubles)
}
