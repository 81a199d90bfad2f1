package session

// Pairs of rails that do not connect, although their addresses promise it. The rails of such a pair try others. What was learned serves later sessions
// with the same host.

import (
	"fmt"
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/errcode"
	"gorail/backend/host"
	"gorail/backend/rails"
)

// leastLooks is how often our own process must have looked at a first probe without an answer before other pairs are tried.
const leastLooks = 4

// apartAfter is how long a first probe waits for its answer before other pairs are tried. proved: a link of the session has had one; a host that starves answers
// none of them. connect is connect_timeout: without a proved link the session ends then, or a quarter of it after a slow Hello (awaitProof), and others need time, too.
func (s *Failover) apartAfter(l *LinkState, proved bool, connect time.Duration) time.Duration {
	if proved {
		return s.patience(l)
	}
	return min(2*s.patience(l), max(2*ProbeTime, connect/5))
}

// trying says what was made of a link that did not connect.
type trying struct {
	looks   int  // how often its first probe had no answer yet
	tried   bool // it was noted as apart, and its rails try others
	alone   bool // they reach no others: the log says that the rail is not connected
	shelved bool // it is not tried again while others serve its rails: its ends are closed
	served  bool // it is shelved because others serve both of its rails
}

// host names the peer's host, for what is remembered: rails of two network namespaces may have the same names.
func (r *Initiator) host() string {
	if r.blob.Boot == "" {
		return r.blob.Engine.String()
	}
	return fmt.Sprint(r.blob.Boot, " ", r.blob.NetNS)
}

// pairOf names a pair of rails. Shards share their device's way.
func (r *Initiator) pairOf(own, peer int) railPair {
	p := railPair{own: rails.Name(r.s.Links.Rails.List[own].Device())}
	for _, o := range r.blob.Rails {
		if int(o.Index) == peer {
			p.peer = o.Fabric + "/" + o.Name
		}
	}
	return p
}

// known is what is known of pairs with the peer's host, from before and from this session; nil: none is apart. As use.
func (r *Initiator) known() rails.Known {
	pairs := r.s.reach.of(r.host())
	if pairs == nil && len(r.apart) == 0 {
		return nil
	}
	if pairs == nil {
		pairs = map[railPair]rails.Reach{}
	}
	for _, p := range r.apart {
		pairs[p] = rails.Apart
	}
	for _, p := range r.working() {
		pairs[p] = rails.Works
	}
	return func(own, peer int) rails.Reach { return pairs[r.pairOf(own, peer)] }
}

// lookApart finds links that do not connect, and tries others in their place. Under mu.
func (r *Initiator) lookApart() {
	proved := r.failover.AnyProved()
	var list []*Link
	for _, l := range r.links {
		switch {
		case l.shelved && l.Phase == BackingOff && time.Since(l.Since) > MaxBackoff && r.missed(l):
			l.wake()
			r.fence(l, "retry")
			r.startLink(l) // if it was never up
		case l.Proved || l.tried:
		case !l.Up && l.Phase == BackingOff && l.Fault != nil:
			list = append(list, l)
		case l.Up && l.Phase == Probing:
			if l.looks++; l.looks > leastLooks && time.Since(l.Since) > r.failover.apartAfter(&l.LinkState, proved, r.s.Options.ConnectTimeout) {
				list = append(list, l)
			}
		}
	}
	r.cannotConnect(list...)
}

// cannotConnect notes that links do not connect, and has their rails try others. Under mu.
func (r *Initiator) cannotConnect(list ...*Link) {
	more := false
	for _, l := range list {
		d := l.Rail.Device()
		if l.Proved || l.tried || r.state != ready || d.Host || d.Loopback || l.OneHost() || l.Rail.Waits() || l.Rail.Down.Load() || l.Rail.Lost() != nil ||
			host.Exhausted(l.Fault) || // this host lacks something: that says nothing of the pair
			slices.Contains(r.working(), r.pairOf(l.Rail.Index, l.Peer)) { // another link of the pair works
			continue
		}
		l.tried = true
		r.noteApart(r.pairOf(l.Rail.Index, l.Peer))
		more = true
		r.s.Log.Debug("a pair of rails does not connect; others are tried", "peer", r.name, "rail", l.Rail.Name(), "peer_rail", r.peer.RailName(l.Peer), "err", l.Reason())
	}
	if !more {
		return
	}
	r.noteReach()
	r.tryOthers()
	for _, l := range r.links {
		if l.tried && !l.Proved && !l.added && !l.alone && r.pairs(func(p rails.Pair) bool { return p.Own == l.Rail.Index && p.Peer == l.Peer }) {
			l.alone = true
			r.logUnproved(l, NoAnswer)
		}
	}
	r.shelve()
}

// noteApart notes once that a pair did not connect: a device that goes down and up has its links tried anew each time. Under mu.
func (r *Initiator) noteApart(p railPair) {
	if !slices.Contains(r.apart, p) {
		r.apart = append(r.apart, p)
	}
}

// relink starts transfers again that wait for links which are not proved, once others reach their memory: a link has joined, or its keys have come.
func (r *Initiator) relink() {
	r.mu.Lock()
	waits := r.state == ready && !r.wide && r.failover.AnyProved() && slices.ContainsFunc(r.links, func(l *Link) bool { return l.Up && !l.Proved })
	r.mu.Unlock()
	if waits {
		r.peer.Relink()
	}
}

// pairs reports that a session would begin with such a pair, from what is known now. Under mu.
func (r *Initiator) pairs(is func(p rails.Pair) bool) bool {
	if r.wide {
		return slices.ContainsFunc(r.firstPairs(), is)
	}
	return slices.ContainsFunc(r.pairOffered(), is)
}

// working are the pairs of links that are proved. Under mu.
func (r *Initiator) working() (list []railPair) {
	for _, l := range r.links {
		if l.Proved {
			list = append(list, r.pairOf(l.Rail.Index, l.Peer))
		}
	}
	return list
}

// noteReach remembers what the session has learned, once a link of it works: a peer that has died or is stopped answers over no pair. Under mu.
func (r *Initiator) noteReach() {
	if !r.failover.AnyProved() {
		return
	}
	if len(r.apart) > 0 {
		r.s.reach.note(r.host(), rails.Apart, r.apart...)
	}
	r.s.reach.note(r.host(), rails.Works, r.working()...)
}

// tryOthers begins links over the pairs that the session would begin with, from what is known now. Under mu.
func (r *Initiator) tryOthers() {
	if r.wide {
		r.tryWider()
		return
	}
	pairs := r.pairOffered()
	if len(r.begin(pairs)) > 0 {
		r.peer.SetPairs(pairs, len(r.links), false)
	}
}

// begin begins the links over pairs that have none, and returns them. Under mu.
func (r *Initiator) begin(pairs []rails.Pair) (more []*Link) {
	for _, p := range pairs {
		had := len(r.links)
		if l := r.linkOver(p, true); l != nil && len(r.links) > had {
			r.startLink(l)
			more = append(more, l)
		}
	}
	return more
}

// tryWider is tryOthers with a wide engine: transfers ask for links again, and the first links have others beside them. Under mu.
func (r *Initiator) tryWider() {
	if !r.failover.AnyProved() {
		r.begin(r.firstPairs())
	}
	devices, known := r.s.Links.Rails.Devices(), r.known()
	for i := range r.open {
		p := &r.open[i]
		r.widenFor(p, known)
		p.links = append(p.links, r.begin(rails.Between(devices, r.blob.Rails, p.Ours, p.Theirs, known))...)
	}
	r.peer.SetPairs(r.peer.Pairs(), len(r.links), true)
}

// shelve ends the tries of links that do not connect, where others serve both of their rails, of those that were only tried, and where our rail has
// no partner. Under mu.
func (r *Initiator) shelve() {
	for _, l := range r.links {
		both := r.served(l, func(o *Link) bool { return o.Proved })
		if l.Proved || !l.tried || l.shelved || !r.failover.OthersWork(&l.LinkState) ||
			!both && !l.added && r.pairs(func(p rails.Pair) bool { return p.Own == l.Rail.Index }) {
			continue
		}
		if l.shelved, l.served, l.UnprovedLogged = true, both, true; l.Up && l.Phase == Probing {
			r.fence(l, "its rails do not reach each other")
		}
	}
	r.logApart()
}

// missed reports that a shelved link is to be tried again: those that serve its rails instead have failed, or all have. The network may have changed.
// Under mu.
func (r *Initiator) missed(l *Link) bool {
	works := func(o *Link) bool { return o.Phase == Working && o.Core.Stats().State == core.LinkUp } // else it waits for its fence
	return !r.served(l, works) && (l.served || !slices.ContainsFunc(r.links, works))
}

// served reports that each rail of a link has a link that is so. Under mu.
func (r *Initiator) served(l *Link, is func(o *Link) bool) bool {
	return slices.ContainsFunc(r.links, func(o *Link) bool { return o.Rail == l.Rail && is(o) }) &&
		slices.ContainsFunc(r.links, func(o *Link) bool { return o.Peer == l.Peer && is(o) })
}

// logApart logs once what was learned, when no try is in progress. Under mu.
func (r *Initiator) logApart() {
	var apart, instead []string
	for _, l := range r.links {
		switch {
		case l.Proved:
			instead = append(instead, r.pairText(l))
		case l.shelved:
			apart = append(apart, r.pairText(l))
		case !l.tried && (l.Phase == Fencing || l.Phase == Probing):
			return
		}
	}
	if len(apart) == 0 || r.apartLogged {
		return
	}
	r.apartLogged = true
	r.s.Log.Info("some rails do not reach each other, though their addresses are in one network: other pairs are used, in later sessions with this host, too",
		"peer", r.name, "apart", apart, "used", instead, "remembered", mostReach, errcode.Key, errcode.RailNotConnected)
}

func (r *Initiator) pairText(l *Link) string { return l.Rail.Name() + ">" + r.peer.RailName(l.Peer) }

// wake lets a link be tried again: its device has changed. Under mu.
func (l *Link) wake() {
	l.trying = trying{}
}
