package peer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gorail/backend/wire"
)

// When the addresses of a peer are tried after a session lost its line.
const (
	stagger    = 20 * time.Millisecond  // from one address to the next,
	launched   = 400 * time.Millisecond // but all are being tried by then
	lastResort = 150 * time.Millisecond // what is suspected comes later than the rest by so much
)

// errSettled ends a search that is not needed any more.
var errSettled = errors.New("the session has a connection that works")

// search looks for a path to the peer of a session, on all its addresses at once, until the session has one or is over. The
// line in use stays until an address answers: a challenge proves a path in both directions and a process that lives.
type search struct {
	out   *Out
	claim chan struct{} // one token, for whoever resumes: one at a time, in the order of the answers

	// Guarded by the session's lock.
	since  time.Time  // the line in use works if it was heard later
	urgent bool       // replace it though it works
	avoid  netip.Addr // a local address to leave from as a last resort
	shakes int        // addresses that a connection is open to: there is life
}

// outcome is what came of trying an address.
type outcome struct {
	addr netip.AddrPort
	err  error
}

// seek begins a search, or makes the one that goes on urgent. With the session's lock held.
func (o *Out) seek(urgent bool, avoid netip.Addr) {
	if o.search == nil {
		k := &search{out: o, claim: make(chan struct{}, 1), since: time.Now()}
		if !o.session.node.spawn(k.run) {
			return // the node has closed, which ends the session
		}
		o.search = k
	}
	if urgent {
		o.search.urgent, o.search.avoid = true, avoid
	}
}

// run searches until the session has a line or is over. When the last line has moved nothing, it pauses first.
func (k *search) run() {
	o, s := k.out, k.out.session
	for done := false; !done; {
		s.mu.Lock()
		moved := s.got + s.queue.acked()
		again := o.resumed && o.mark == moved
		o.mark = moved
		s.mu.Unlock()
		if again {
			pause(s.ctx, firstBackoff)
		}
		k.round()
		s.mu.Lock()
		if done = s.line != nil && !k.urgent || s.ctx.Err() != nil; done {
			o.search = nil
		}
		k.since = time.Now()
		s.mu.Unlock()
	}
}

// round tries the addresses until the session has been resumed, or needs it no more, or the peer is known to be dead.
func (k *search) round() {
	s := k.out.session
	ctx, cancel := context.WithCancel(s.ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	addrs, delays, proved := k.candidates()
	outcomes := make(chan outcome)
	for i, a := range addrs {
		workers.Add(1)
		s.node.spawn(func() { // always runs: this is a goroutine of the node
			defer workers.Done()
			k.try(ctx, a, delays[i], outcomes)
		})
	}
	last := make(map[netip.AddrPort]error)
	look := time.NewTicker(maxBackoff) // whether the line in use has come to life
	defer look.Stop()
	var late <-chan time.Time // for how long they must all have said no
	for waited := false; ; {
		select {
		case r := <-outcomes:
			if r.err == nil {
				return
			}
			if hopeless(r.err) {
				s.end(Lost, fmt.Errorf("%w: %s: %v: %w", ErrDropped, s.peer, r.addr, r.err), nil)
				return
			}
			last[r.addr] = r.err
		case <-look.C:
		case <-late:
			waited = true
		case <-ctx.Done():
			return
		}
		alive, refused := k.census(last, proved)
		switch {
		case k.settled(len(last) == len(addrs)):
			return
		case alive:
			late, waited = nil, false
		case waited && (refused == len(addrs) || !k.shaking()):
			k.bury(last)
			return
		case late == nil:
			late = time.After(hintsFor)
		}
	}
}

// census says whether the peer may be alive, for all that the addresses have said last, and how many refuse. One where it has
// answered before must refuse; one that never answered only shows life when it takes connections. Nobody has proved a refusal: they count
// once all have said so for hintsFor.
func (k *search) census(last map[netip.AddrPort]error, proved []netip.AddrPort) (alive bool, refused int) {
	s := k.out.session
	s.mu.Lock()
	hungUp := s.line == nil && dropped(s.broken)
	s.mu.Unlock()
	for _, a := range proved {
		alive = alive || !refuses(last[a], hungUp)
	}
	for _, err := range last {
		alive = alive || busy(err)
		if refuses(err, hungUp) {
			refused++
		}
	}
	return alive, refused
}

// candidates gives the addresses in the order in which they are tried: first those where the peer has answered before, the
// last line's at the end; when each is due; and those that must refuse before the peer is taken for dead.
func (k *search) candidates() (addrs []netip.AddrPort, delays []time.Duration, proved []netip.AddrPort) {
	o, s := k.out, k.out.session
	addrs = reachable(&s.node.cfg.Identity, &o.to)
	s.mu.Lock()
	defer s.mu.Unlock()
	rank := func(a netip.AddrPort) int {
		switch {
		case a == s.at:
			return 2
		case o.proved[a]:
			return 0
		}
		return 1
	}
	slices.SortStableFunc(addrs, func(a, b netip.AddrPort) int { return rank(a) - rank(b) })
	hungUp := s.line == nil && dropped(s.broken) // which came over a path that works
	step := min(stagger, launched/time.Duration(max(1, len(addrs))))
	for i, a := range addrs {
		delay := time.Duration(i) * step
		if a == s.at && i > 0 && !hungUp {
			delay = max(delay, lastResort)
		}
		delays = append(delays, delay)
	}
	return addrs, delays, slices.Collect(maps.Keys(o.proved))
}

// settled says that the line in use shall stay. all: every address has been tried.
func (k *search) settled(all bool) bool {
	s := k.out.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if !k.works() || k.urgent && !all {
		return false
	}
	k.calm()
	return true
}

// shaking says that an address has accepted a connection and may yet resume the session.
func (k *search) shaking() bool {
	s := k.out.session
	s.mu.Lock()
	defer s.mu.Unlock()
	return k.shakes > 0
}

// calm ends the urgency: there is another line, or no better path. With the session's lock held.
func (k *search) calm() { k.urgent, k.avoid = false, netip.Addr{} }

// works says that there is a line, and that it was heard since the search began. With the session's lock held.
func (k *search) works() bool {
	s := k.out.session
	return s.line != nil && (k.urgent || s.live.lastHeard().After(k.since))
}

// bury ends the session of a peer that is dead: none of its addresses has a process any more that knows it.
func (k *search) bury(last map[netip.AddrPort]error) {
	var tried failures
	for a, err := range last {
		tried = append(tried, failure{addr: a, err: err})
	}
	slices.SortFunc(tried, func(a, b failure) int { return a.addr.Compare(b.addr) })
	s := k.out.session
	s.mu.Lock()
	defer s.mu.Unlock()
	broken := s.broken
	if s.line != nil {
		if s.live.lastHeard().After(k.since) {
			k.calm()
			return
		}
		broken = errUneasy
	}
	if !tried.gone() {
		s.endLocked(Lost, fmt.Errorf("%w: %w", s.explain(broken), tried), nil)
		return
	}
	s.endLocked(Lost, dead(fmt.Errorf("%w, and its process is gone: %w", s.explain(broken), tried)), nil)
}

// refuses says that, by its answer, the peer's session doesn't live behind an address any more. A Reject counts always; a
// refused connection only when the peer had hung up: while a link is down, whoever the default route leads to may refuse.
func refuses(err error, hungUp bool) bool {
	var r *RejectError
	return hint(err) && (hungUp || errors.As(err, &r))
}

// gone says that no address speaks of a session: there is no engine any more that knows it.
func (fs failures) gone() bool {
	return !slices.ContainsFunc(fs, func(f failure) bool {
		var r *RejectError
		return errors.As(f.err, &r) && !elsewhere(r)
	})
}

// elsewhere is the answer of an engine that is not the peer.
func elsewhere(r *RejectError) bool { return r.Code == wire.CodeEngine || r.Code == wire.CodeVersion }

// hopeless says that no address will resume the session: its target has proved that it said so, or this side has.
func hopeless(err error) bool {
	var f *finalError
	var r *RejectError
	return errors.As(err, &f) || errors.As(err, &r) && r.Proved && r.Code != wire.CodeBusy
}
