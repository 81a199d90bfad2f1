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

	"gorail/backend/peer/stream"
)

// When the addresses of a peer are tried after a session lost its connection.
const (
	stagger    = 20 * time.Millisecond  // from one address to the next,
	launched   = 400 * time.Millisecond // but all are being tried by then
	lastResort = 150 * time.Millisecond // what is suspected comes later than the rest by so much
)

// errConnected ends a search that is not needed any more.
var errConnected = errors.New("the session has a connection that works")

// reconnect looks for a path to the peer of a session, on all its addresses at once, until the session has one or is over. The
// connection in use stays until an address answers: a challenge proves a path in both directions and a process that lives.
type reconnect struct {
	out   *Out
	claim chan struct{} // one token, for whoever resumes: one at a time, in the order of the answers

	// Guarded by the stream's lock.
	since      time.Time  // the connection in use works if it was heard later
	urgent     bool       // replace it though it works
	avoid      netip.Addr // a local address to leave from as a last resort
	handshakes int        // addresses that a connection is open to: there is life
}

// outcome is what came of trying an address.
type outcome struct {
	addr netip.AddrPort
	err  error
}

// reconnector begins searches for a session.
type reconnector struct{ out *Out }

// Reconnect implements stream.Reconnector.
func (k reconnector) Reconnect(urgent bool, avoid netip.Addr) {
	o := k.out
	if o.reconnect == nil {
		k := &reconnect{out: o, claim: make(chan struct{}, 1), since: time.Now()}
		if !o.spawn(k.run) {
			return // the node has closed, which ends the session
		}
		o.reconnect = k
	}
	if urgent {
		o.reconnect.urgent, o.reconnect.avoid = true, avoid
	}
}

// run searches until the session has a connection or is over. When the last one has moved nothing, it pauses first.
func (k *reconnect) run() {
	o, s := k.out, k.out.stream
	for done := false; !done; {
		var again bool
		s.Do(func(l stream.Locked) {
			moved := l.Moved()
			again = o.resumed && o.mark == moved
			o.mark = moved
		})
		if again {
			pause(s.Context(), firstBackoff)
		}
		k.round()
		s.Do(func(l stream.Locked) {
			if done = l.Connected() && !k.urgent || s.Context().Err() != nil; done {
				o.reconnect = nil
			}
			k.since = time.Now()
		})
	}
}

// round tries the addresses until the session has been resumed, or needs it no more, or the peer is known to be dead.
func (k *reconnect) round() {
	s := k.out.stream
	ctx, cancel := context.WithCancel(s.Context())
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	addrs, delays, proved := k.candidates()
	outcomes := make(chan outcome)
	for i, a := range addrs {
		workers.Add(1)
		k.out.spawn(func() { // always runs: this is a goroutine of the node
			defer workers.Done()
			k.try(ctx, a, delays[i], outcomes)
		})
	}
	last := make(map[netip.AddrPort]error)
	look := time.NewTicker(maxBackoff) // whether the connection in use has come to life
	defer look.Stop()
	var late <-chan time.Time // for how long they must all have said no
	for waited := false; ; {
		select {
		case r := <-outcomes:
			if r.err == nil {
				return
			}
			if rejectedForGood(r.err) {
				s.End(Lost, fmt.Errorf("%w: %s: %v: %w", ErrDropped, s.Peer(), r.addr, r.err), nil)
				return
			}
			last[r.addr] = r.err
		case <-look.C:
		case <-late:
			waited = true
		case <-ctx.Done():
			return
		}
		alive, refused := k.countReplies(last, proved)
		switch {
		case k.satisfied(len(last) == len(addrs)):
			return
		case alive:
			late, waited = nil, false
		case waited && (refused == len(addrs) || !k.inHandshake()):
			k.declareDead(last)
			return
		case late == nil:
			late = time.After(hintsFor)
		}
	}
}

// countReplies says whether the peer may be alive, for all that the addresses have said last, and how many refuse. One where it has
// answered before must refuse; one that never answered only shows life when it takes connections. Nobody has proved a refusal: they count
// once all have said so for hintsFor.
func (k *reconnect) countReplies(last map[netip.AddrPort]error, proved []netip.AddrPort) (alive bool, refused int) {
	var hungUp bool
	k.out.stream.Do(func(l stream.Locked) { hungUp = l.HungUp() })
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
// last connection's at the end; when each is due; and those that must refuse before the peer is taken for dead.
func (k *reconnect) candidates() (addrs []netip.AddrPort, delays []time.Duration, proved []netip.AddrPort) {
	o := k.out
	addrs = reachable(&o.cfg.Identity, &o.to)
	o.stream.Do(func(l stream.Locked) {
		at := l.At()
		rank := func(a netip.AddrPort) int {
			switch {
			case a == at:
				return 2
			case o.proved[a]:
				return 0
			}
			return 1
		}
		slices.SortStableFunc(addrs, func(a, b netip.AddrPort) int { return rank(a) - rank(b) })
		hungUp := l.HungUp() // over a path that works
		step := min(stagger, launched/time.Duration(max(1, len(addrs))))
		for i, a := range addrs {
			delay := time.Duration(i) * step
			if a == at && i > 0 && !hungUp {
				delay = max(delay, lastResort)
			}
			delays = append(delays, delay)
		}
		proved = slices.Collect(maps.Keys(o.proved))
	})
	return addrs, delays, proved
}

// satisfied says that the connection in use shall stay. all: every address has been tried.
func (k *reconnect) satisfied(all bool) (satisfied bool) {
	k.out.stream.Do(func(l stream.Locked) {
		if satisfied = k.works(l) && (!k.urgent || all); satisfied {
			k.endUrgency()
		}
	})
	return satisfied
}

// inHandshake says that an address has accepted a connection and may yet resume the session.
func (k *reconnect) inHandshake() (inHandshake bool) {
	k.out.stream.Do(func(stream.Locked) { inHandshake = k.handshakes > 0 })
	return inHandshake
}

// endUrgency ends the urgency: there is another connection, or no better path. With the stream's lock held.
func (k *reconnect) endUrgency() { k.urgent, k.avoid = false, netip.Addr{} }

// works says that there is a connection, and that it was heard since the search began.
func (k *reconnect) works(l stream.Locked) bool {
	return l.Connected() && (k.urgent || l.Heard(k.since))
}

// declareDead ends the session of a peer that is dead: none of its addresses has a process any more that knows it.
func (k *reconnect) declareDead(last map[netip.AddrPort]error) {
	var tried failures
	for a, err := range last {
		tried = append(tried, failure{addr: a, err: err})
	}
	slices.SortFunc(tried, func(a, b failure) int { return a.addr.Compare(b.addr) })
	k.out.stream.Do(func(l stream.Locked) {
		switch {
		case l.Heard(k.since):
			k.endUrgency()
		case !tried.gone():
			l.End(Lost, fmt.Errorf("%w: %w", l.Why(), tried))
		default:
			l.End(Lost, stream.Dead(fmt.Errorf("%w, and its process is gone: %w", l.Why(), tried)))
		}
	})
}
