package peer

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"
)

// simLength is how long faults come. Afterwards the network works.
const simLength = 20 * time.Second

// deed is something that the application does.
type deed int

const (
	fences deed = iota
	revokes
	asksKeys
	drains
	wantsFence
	suspects
	suspected
	commonDeeds
	leaves  deed = iota - 1 // the initiator closes the session
	evicted                 // the target closes it
	deeds
)

var deedNames = [deeds]string{"fences", "revokes", "asks for keys", "drains", "wants a fence", "suspects", "is suspected", "leaves", "is evicted"}

// action is one entry of the application's schedule.
type action struct {
	at    time.Duration
	deed  deed
	count int
}

// plan is all that a seed decides.
type plan struct {
	timeout time.Duration // peer_timeout of both sides
	paths   []*simPath
	faults  []fault // in the order of their begin
	actions []action
}

// newPlan makes the plan of a seed. The simulation begins now.
func newPlan(seed uint64) *plan {
	rnd := rand.New(rand.NewPCG(seed, 1))
	between := func(from, to time.Duration) time.Duration { return from + time.Duration(rnd.Int64N(int64(to-from))) }
	p := &plan{timeout: []time.Duration{2 * time.Second, 6 * time.Second, 15 * time.Second}[rnd.IntN(3)]}
	for i := range 1 + rnd.IntN(3) {
		p.paths = append(p.paths, &simPath{begun: time.Now(), base: between(10*time.Microsecond, 20*time.Millisecond),
			local: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), 999), addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 1),
			accepted: make(chan net.Conn, 1024), down: make(chan struct{})})
	}
	for range 1 + rnd.IntN(12*len(p.paths)) {
		f := fault{kind: faultKind(rnd.IntN(int(faultKinds))), path: rnd.IntN(len(p.paths)), from: between(0, simLength),
			bytes: rnd.IntN(300), delay: between(0, 100*time.Millisecond)}
		if f.kind < lastingKinds {
			f.to = min(simLength, f.from+between(time.Millisecond, []time.Duration{100 * time.Millisecond, time.Second, 10 * time.Second}[rnd.IntN(3)]))
		}
		which := 1 + rnd.IntN(3)
		for dir := range f.dirs {
			f.dirs[dir] = which>>dir&1 == 1
		}
		p.faults = append(p.faults, f)
	}
	if rnd.IntN(4) == 0 { // a fault of all addresses at a time
		f := fault{kind: []faultKind{stall, refuse, hang, route}[rnd.IntN(4)], from: between(0, simLength/2), dirs: [directions]bool{true, true}}
		f.to = f.from + between(0, simLength/2)
		for f.path = range p.paths {
			p.faults = append(p.faults, f, fault{kind: reset, path: f.path, from: f.from + 1})
		}
	}
	slices.SortStableFunc(p.faults, func(a, b fault) int { return int(a.from - b.from) })
	for _, f := range p.faults {
		p.paths[f.path].faults = append(p.paths[f.path].faults, f)
	}
	for range 10 + rnd.IntN(100) {
		p.actions = append(p.actions, action{between(0, simLength), deed(rnd.IntN(int(commonDeeds))), 1 + rnd.IntN(20)})
	}
	for range rnd.IntN(4) / 2 {
		p.actions = append(p.actions, action{between(0, simLength), commonDeeds + deed(rnd.IntN(int(deeds-commonDeeds))), 1})
	}
	slices.SortStableFunc(p.actions, func(a, b action) int { return int(a.at - b.at) })
	return p
}

// calm returns the longest time between two times in which no fault touched some path.
func (p *plan) calm(from, to time.Time) (longest time.Duration) {
	for _, path := range p.paths {
		begin := from
		for begin.Before(to) {
			end, next := to, to
			for _, f := range path.faults { // in the order of their begin
				hurt, over := path.begun.Add(f.from), path.begun.Add(max(f.from, f.to)+1)
				if over.Before(begin) || !hurt.Before(end) {
					continue
				}
				end, next = later(hurt, begin), later(over, begin.Add(1))
				break
			}
			longest = max(longest, end.Sub(begin))
			begin = next
		}
	}
	return longest
}
