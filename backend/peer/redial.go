package peer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// When the addresses of a peer are tried after a session has lost its connection.
const (
	stagger    = 20 * time.Millisecond  // from one address to the next,
	allStarted = 400 * time.Millisecond // but all are being tried by then
	lastResort = 150 * time.Millisecond // extra delay of the suspected address
)

// errConnected ends a reconnect that is no longer necessary.
var errConnected = errors.New("the session has a connection that works")

// reconnect looks for a path to the peer of a session, on all its addresses at once, until the session has one or is
// over. The connection in use stays until an address answers. A challenge proves a live process and a path in both
// directions.
type reconnect struct {
	out   *Out
	begun time.Time     // constant
	moved chan struct{} // one token: the peer has other addresses
	claim chan struct{} // one token: addresses resume one at a time, in the order of their answers

	// Guarded by the stream's lock.
	since  time.Time  // the connection in use works if it was heard after this time
	urgent bool       // replace the connection even if it works
	renew  bool       // by another connection to any address, also the one in use
	avoid  netip.Addr // a local address to use only as a last resort
	vain   int        // handshakes that the peer has begun, and not ended in time

	restarted bool // the peer has moved since the last round began
}

// outcome is the result of one try of an address, or one of the two steps before it.
type outcome struct {
	addr netip.AddrPort
	err  error
}

// errNoTurn ends a try of an address while another one resumes.
var errNoTurn = errors.New("another address of the peer is in its handshake")

var (
	errBegun    = errors.New("the first try begins")
	errAccepted = errors.New("the address has accepted a connection")
)

// findConnection starts a reconnect of the session. It is the stream's Reconnect.
func (o *Out) findConnection(urgent bool, avoid netip.Addr) {
	if o.reconnect == nil {
		k := &reconnect{out: o, begun: time.Now(), moved: make(chan struct{}, 1), claim: make(chan struct{}, 1), since: time.Now()}
		if !o.spawn(k.run) {
			return // the node has closed, which ends the session
		}
		o.reconnect = k
	}
	if urgent {
		o.reconnect.urgent, o.reconnect.avoid = true, avoid
	}
}

// run dials until the session has a connection or is over. It pauses first if the last connection has moved no
// frame.
func (k *reconnect) run() {
	o, s := k.out, k.out.stream
	for done := false; !done; {
		var again, restarted bool
		s.Do(func(l lockedStream) {
			progress := l.Progress()
			again = o.resumed && o.progress == progress
			o.progress = progress
			restarted, k.restarted = k.restarted, false
		})
		if again {
			pause(s.Context(), firstBackoff)
		}
		if restarted {
			pause(s.Context(), maxBackoff) // a peer that moves again and again has addresses dialed no more often than another
		}
		k.round()
		s.Do(func(l lockedStream) {
			if done = l.Connected() && !k.urgent || s.Context().Err() != nil; done {
				o.reconnect = nil
			}
			k.since = time.Now()
		})
	}
}

// again makes the round begin again, with the addresses of now. It needs the stream's lock.
func (k *reconnect) again() {
	k.restarted = true
	select {
	case k.moved <- struct{}{}:
	default:
	}
}

// round tries the addresses until the session has been resumed, needs no new connection, or the peer is known to be
// dead.
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
	poll := time.NewTicker(maxBackoff) // checks whether the connection in use works again
	defer poll.Stop()
	var late <-chan time.Time                   // fires when all addresses have refused long enough
	var due time.Time                           // when it fires
	handshakes := make(map[netip.AddrPort]bool) // addresses with an open connection: a sign of life
	for begun, waited := 0, 0; ; {              // waited: periods in which nothing showed life
		r, got := outcome{}, false
		select {
		case r = <-outcomes:
			got = true
		case <-poll.C:
		case <-k.moved:
			return
		case <-late:
			late = nil
			select { // first what has come already: it may show life
			case r = <-outcomes:
				got = true
			default:
				if time.Since(due) < starvedBy { // else our tries may have lacked CPU time, too
					waited++
				}
			}
		case <-ctx.Done():
			return
		}
		if got {
			if r.err == nil {
				return
			}
			switch r.err {
			case errBegun:
				begun++
				continue
			case errAccepted:
				handshakes[r.addr] = true
				continue
			}
			delete(handshakes, r.addr)
			if rejectedForGood(r.err) {
				k.rejected(r)
				return
			}
			last[r.addr] = r.err
		}
		alive, refused := k.countReplies(last, proved)
		enough := 1
		if len(last) < len(addrs) {
			enough = 2 // the first try of an address is still under way
		}
		switch {
		case k.satisfied(len(last) == len(addrs), refused > 0):
			return
		case alive:
			late, waited = nil, 0
		case waited >= enough && (refused == len(addrs) || len(handshakes) == 0):
			k.declareDead(last)
			return
		case late == nil && begun == len(addrs):
			late, due = time.After(refusalPeriod), time.Now().Add(refusalPeriod)
		}
	}
}

// rejected ends the session: no address will resume it.
func (k *reconnect) rejected(r outcome) {
	s := k.out.stream
	why := fmt.Errorf("%w: %s: %v: %w", ErrDropped, s.Peer(), r.addr, r.err)
	if saysGone(r.err) {
		why = dead(why)
	}
	s.End(Lost, why, nil)
}

// countReplies reports whether the peer may be alive, by the last answers of all addresses, and how many addresses
// refuse. An address where the peer has answered before must refuse. Another address shows life only if it accepts
// connections. Refusals are unproved, so they count only after all addresses have refused for refusalPeriod.
func (k *reconnect) countReplies(last map[netip.AddrPort]error, proved []netip.AddrPort) (alive bool, refused int) {
	var hungUp bool
	k.out.stream.Do(func(l lockedStream) { hungUp = l.HungUp() })
	for _, a := range proved {
		alive = alive || !refuses(last[a], hungUp)
	}
	for _, err := range last {
		alive = alive || busy(err) || accepted(err)
		if refuses(err, hungUp) {
			refused++
		}
	}
	return alive, refused
}

// candidates returns the addresses in the order of the tries: first those where the peer has answered before, at the
// end the last connection's. delays has the start of each. proved has the addresses that must refuse before the peer
// is declared dead.
func (k *reconnect) candidates() (addrs []netip.AddrPort, delays []time.Duration, proved []netip.AddrPort) {
	o := k.out
	addrs = o.addrs()
	o.stream.Do(func(l lockedStream) {
		at := l.At()
		rank := func(a netip.AddrPort) int {
			switch {
			case a == at:
				return 2
			case slices.Contains(o.proved, a):
				return 0
			}
			return 1
		}
		slices.SortStableFunc(addrs, func(a, b netip.AddrPort) int { return rank(a) - rank(b) })
		hungUp := l.HungUp() // the path to the peer's host works then
		step := min(stagger, allStarted/time.Duration(max(1, len(addrs))))
		for i, a := range addrs {
			delay := time.Duration(i) * step
			if a == at && i > 0 && !hungUp {
				delay = max(delay, lastResort)
			}
			delays = append(delays, delay)
		}
		o.proved = slices.DeleteFunc(o.proved, func(a netip.AddrPort) bool { return !slices.Contains(addrs, a) }) // the peer has moved
		proved = slices.Clone(o.proved)
	})
	return addrs, delays, proved
}

// satisfied reports that the connection in use stays. all: every address has been tried. If none answers, and the connection in use reaches the peer's host, no other
// would do better; but a refusal is no sign of a peer that starves, and that address may come back.
func (k *reconnect) satisfied(all, refused bool) (satisfied bool) {
	k.out.stream.Do(func(l lockedStream) {
		if satisfied = k.works(l) && (!k.urgent || all) || all && !refused && !k.urgent && l.starves(); satisfied {
			k.endUrgency()
		}
	})
	return satisfied
}

// endUrgency ends the urgency: there is another connection, or no better path. It needs the stream's lock.
func (k *reconnect) endUrgency() { k.urgent, k.renew, k.avoid = false, false, netip.Addr{} }

// works reports that there is a connection, and that the peer was heard since the reconnect began. If only the peer's bytes arrive, the connection does not
// work: the kernel tells.
func (k *reconnect) works(l lockedStream) bool {
	return l.Connected() && (k.urgent || l.Heard(k.since)) && !l.repeats()
}

// declareDead ends the session of a dead peer: no process at any of its addresses knows the session.
func (k *reconnect) declareDead(last map[netip.AddrPort]error) {
	var tried failures
	for a, err := range last {
		tried = append(tried, failure{addr: a, err: err})
	}
	slices.SortFunc(tried, func(a, b failure) int { return a.addr.Compare(b.addr) })
	k.out.stream.Do(func(l lockedStream) {
		switch {
		case l.Heard(k.since):
			k.endUrgency()
		case !tried.gone():
			l.End(Lost, fmt.Errorf("%w: %w", l.Why(), tried))
		default:
			l.End(Lost, dead(fmt.Errorf("%w, and its process is gone: %w", l.Why(), tried)))
		}
	})
}
