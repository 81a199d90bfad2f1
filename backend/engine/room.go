package engine

import (
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"gorail/backend/peer"
	"gorail/backend/wire"
)

// What a peer that holds our token may take. docs/options.md has the options.
const (
	mostEndpoints = 16384                  // of peers' sessions; and no more than half of the process's descriptors suffice for
	mostOlder     = 4                      // sessions of one engine: where endpoints are shared, older ones go on for a while
	openers       = 2                      // Hellos that open endpoints at a time: each holds a thread, and a rail's lock
	fencers       = 16                     // fences at a time: one may wait a second for its peer's notifications
	mostWait      = 500 * time.Millisecond // of a turn, for a pace
	enders        = 16                     // sessions that close endpoints at a time
	share         = 8                      // opening takes one part of so many of a core, after
	atOnce        = 300 * time.Millisecond // which is a thousand endpoints on tcp
)

// places counts the endpoints of peers' sessions, all and by where the peers are.
type places struct {
	mu      sync.Mutex
	all     usage
	sources map[netip.Addr]usage
}

// usage is how many endpoints there are, and how many descriptors these take.
type usage struct{ endpoints, descriptors int }

func (u usage) plus(v usage) usage {
	return usage{u.endpoints + v.endpoints, u.descriptors + v.descriptors}
}

// within says whether it stays within so many quarters of a limit.
func (u usage) within(most usage, quarters int) bool {
	return 4*u.endpoints <= quarters*most.endpoints && 4*u.descriptors <= quarters*most.descriptors
}

// take counts endpoints of a source; false: they would be too many, of that source or of all.
func (r *places) take(source netip.Addr, more, most usage) (same, fits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, from := r.all.plus(more), r.sources[source].plus(more)
	if !from.within(most, 3) || !all.within(most, 4) {
		return !from.within(most, 3), false
	}
	if r.sources == nil {
		r.sources = map[netip.Addr]usage{}
	}
	r.all, r.sources[source] = all, from
	return false, true
}

func (r *places) give(source netip.Addr, less usage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	less = usage{-less.endpoints, -less.descriptors}
	r.all = r.all.plus(less)
	if r.sources[source] = r.sources[source].plus(less); r.sources[source] == (usage{}) {
		delete(r.sources, source)
	}
}

// mostRoom is the limit of endpoints and of their descriptors.
func (e *Engine) mostRoom() usage {
	if e.opt.MaxEndpoints > 0 {
		return usage{e.opt.MaxEndpoints, 1 << 30}
	}
	l := syscall.Rlimit{Cur: 1024}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l)
	return usage{mostEndpoints, int(min(l.Cur/2, 1<<30))}
}

// makeRoom checks a Hello's offers, and counts their endpoints until leaveRoom.
func (t *target) makeRoom(offers []wire.EndpointOffer) error {
	e := t.e
	type pair struct{ rail, own uint8 }
	links := map[pair]int{}
	for _, o := range offers {
		if int(o.Rail) >= len(e.rails) {
			continue // it is told that there is none
		}
		most := e.opt.QPsPerRail
		if e.rails[o.Rail].Can.SharedEndpoint {
			most = 1
		}
		p := pair{o.Rail, o.Own}
		if links[p]++; links[p] > most {
			return &peer.RejectError{Code: wire.CodeLimit, Text: fmt.Sprintf("%d links on a pair of rails: %d are allowed here (option qps_per_rail)", links[p], most)}
		}
		t.usage = t.usage.plus(usage{1, e.rails[o.Rail].Can.Descriptors})
	}
	most := e.mostRoom()
	same, fits := e.room.take(t.in.Source(), t.usage, most)
	if fits {
		return nil
	}
	t.usage = usage{}
	from := netip.Addr{}
	if same {
		from = t.in.Source()
	}
	e.node.MakeRoom(from)
	return &peer.RejectError{Code: wire.CodeBusy, Text: fmt.Sprintf(
		"peers have too many endpoints here: %d, with %d file descriptors, are the most (option max_endpoints, ulimit -n)", most.endpoints, most.descriptors)}
}

// leaveRoom is called when the endpoints are closed. It may be called again.
func (t *target) leaveRoom() {
	t.e.room.give(t.in.Source(), t.usage)
	t.usage = usage{}
}

// pace bounds the share of a core that something takes: burst at once, then one part of so many.
type pace struct {
	burst time.Duration
	parts int

	mu   sync.Mutex
	debt time.Duration
	at   time.Time
}

// drain is called with mu held.
func (p *pace) drain(now time.Time) {
	if now.After(p.at) { // else another was quicker
		p.debt = max(0, p.debt-now.Sub(p.at)/time.Duration(p.parts))
		p.at = now
	}
}

// due is how long whoever wants to spend more must wait.
func (p *pace) due(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drain(now)
	return max(0, p.debt-p.burst) * time.Duration(p.parts)
}

func (p *pace) spend(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drain(time.Now())
	p.debt = min(p.debt+d, p.burst+mostWait/time.Duration(p.parts)) // who has waited long for something else is no reason to keep others out
}

// wait waits until more may be spent; false: done came before.
func (p *pace) wait(done <-chan struct{}) bool {
	d := p.due(time.Now())
	if d == 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-done:
		return false
	}
}

// turns lets few of many do at a time what holds threads and locks, as much of the time as paces allow.
type turns struct {
	places chan struct{}
	pace   *pace // of all together, or nil
}

func newTurns(places int, all *pace) *turns {
	return &turns{places: make(chan struct{}, places), pace: all}
}

// take waits for a turn, which ends with end; false: the session has ended before. own is the session's own pace, or nil.
func (s *turns) take(done <-chan struct{}, own *pace) (end func(), ok bool) {
	if own != nil && !own.wait(done) || s.pace != nil && !s.pace.wait(done) {
		return nil, false
	}
	select {
	case s.places <- struct{}{}:
	case <-done:
		return nil, false
	}
	start := time.Now()
	return func() {
		took := time.Since(start)
		<-s.places
		if s.pace != nil {
			s.pace.spend(took)
		}
		if own != nil {
			own.spend(took)
		}
	}, true
}

// few lets one log line in a second through, after the first ones: peers must not fill our log.
type few struct {
	mu   sync.Mutex
	at   time.Time
	left float64 // lines
	lost int     // not written since the last
}

const fewAtOnce = 20

// next says whether a line may be written, and how many were not since the last.
func (f *few) next(now time.Time) (lost int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.at.IsZero() {
		f.left = fewAtOnce
	} else if now.After(f.at) {
		f.left = min(fewAtOnce, f.left+now.Sub(f.at).Seconds())
	}
	f.at = now
	if f.left < 1 {
		f.lost++
		return 0, false
	}
	f.left--
	lost, f.lost = f.lost, 0
	return lost, true
}

// warnOf warns of what a peer has caused, unless there is too much of it.
func (e *Engine) warnOf(in *peer.In, text string, args ...any) {
	lost, ok := e.few.next(time.Now())
	if !ok {
		return
	}
	args = append(args, "peer", in.Agent())
	if lost > 0 {
		args = append(args, "lines_left_out", lost)
	}
	e.log.Warn(text, args...)
}
