package session

// Links that begin when memory needs them. A wide engine (rails.Set.Wide) registers memory on the rails near to it. So the rails of a
// transfer are those of its memory on both sides, and their pairs are known with the keys.

import (
	"slices"
	"time"

	"gorail/backend/core"
	"gorail/backend/rails"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// firstLinks is how many links a session with a wide engine begins with: one carries the notifications, another replaces it.
const firstLinks = 2

// leastSets is how many more sets of rails find room for links: a set takes that part of what is left, and one at least.
const leastSets = 16

// mostWiden is how long transfers without a pair wait for host memory on the rails that were asked for: registration may take a second a rail.
const mostWiden = 5 * time.Second

// pairings are the pairs that transfers need. Under Initiator.mu.
type pairings struct {
	wide  bool        // links begin when transfers need them
	slots map[int]int // by the peer's rail: its place in the core's table of keys

	unopened uint64 // bit mask of our rails over which no endpoint opened for a Hello
	open     []pairing
	widened  uint64 // bit mask of our rails that transfers to the peer have asked for
}

// pairing is a pair of sets of rails whose links begin.
type pairing struct {
	transfer.Sets
	links []*Link
	until time.Time // it is not over before: host memory gets more rails
}

// isWide reports that one of the two engines registers memory on some of its rails alone, and that these leave the host. As use.
func (r *Initiator) isWide(pairs []rails.Pair) bool {
	if !r.s.Links.Rails.Wide() && !slices.ContainsFunc(r.blob.Rails, func(o wire.RailOffer) bool { return o.Idle }) {
		return false
	}
	d := r.s.Links.Rails.List[pairs[0].Own].Device()
	return !d.Host && !d.Loopback
}

// possible are pairs of all rails that reach each other: each of ours and of the peer's is in one. As use.
func (r *Initiator) possible() []rails.Pair {
	return rails.Between(r.s.Links.Rails.Devices(), r.blob.Rails, ^uint64(0), ^uint64(0), nil)
}

// firstPairs are the pairs of a Hello with a wide engine: of rails that all host memory is on, and as few others as it takes. Rails that do not
// work are left out while there are others. As use.
func (r *Initiator) firstPairs() (out []rails.Pair) {
	set := r.s.Links.Rails
	var ours, theirs, broken uint64
	for i, rl := range set.List {
		if rl.Down.Load() || rl.Lost() != nil || rl.Waits() || r.unopened&(1<<i) != 0 {
			broken |= 1 << i
		}
	}
	for i := range set.List {
		if set.Common(i) {
			ours |= 1 << i
		}
	}
	for _, o := range r.blob.Rails {
		if !o.Idle {
			theirs |= 1 << (o.Index & 63)
		}
	}
	home := set.For(rails.Place{Node: -1})
	const all = ^uint64(0)
	known := r.known()
	for _, masks := range [][2]uint64{{ours &^ broken, theirs}, {(ours | home) &^ broken, theirs}, {(ours | home) &^ broken, all}, {all &^ broken, all}, {all, all}} {
		for _, p := range rails.Between(set.Devices(), r.blob.Rails, masks[0], masks[1], known) {
			if known != nil && known(p.Own, p.Peer) == rails.Apart && masks != [2]uint64{all, all} {
				continue
			}
			used := func(q rails.Pair) bool { return q.Own == p.Own || q.Peer == p.Peer }
			if len(out) < firstLinks && !slices.ContainsFunc(out, used) {
				out = append(out, p)
			}
		}
	}
	return out
}

// hasSlot gives a rail of the peer a place in the core's table of keys. False: there are as many rails as the table has. As use.
func (r *Initiator) hasSlot(peerRail int) bool {
	if _, has := r.slots[peerRail]; has {
		return true
	}
	if len(r.slots) >= r.s.Links.Rails.Slots || peerRail >= wire.MaxRails {
		return false
	}
	if r.slots == nil {
		r.slots = map[int]int{}
	}
	r.slots[peerRail] = len(r.slots)
	r.peer.Place(peerRail)
	return true
}

// withSlots are the pairs whose rail of the peer has a place in the core's table of keys. As use.
func (r *Initiator) withSlots(pairs []rails.Pair) []rails.Pair {
	return slices.DeleteFunc(pairs, func(p rails.Pair) bool { return !r.hasSlot(p.Peer) })
}

// takesKey reports that the keys of a rail of the peer are of use: a pair of rails has it. Under mu.
func (r *Initiator) takesKey(peerRail int) bool {
	if _, has := r.slots[peerRail]; has {
		return true
	}
	return r.wide && slices.ContainsFunc(r.peer.Pairs(), func(p rails.Pair) bool { return p.Peer == peerRail }) && r.hasSlot(peerRail)
}

// Pair begins the links that transfers between such memory need, and lacks. It tells the transfers when it knows which of them work.
// Implements transfer.Session.
func (r *Initiator) Pair(s transfer.Sets) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != ready {
		r.unpair()
		return
	}
	p := pairing{Sets: s}
	devices, known := r.s.Links.Rails.Devices(), r.known()
	r.widenFor(&p, known)
	pairs := rails.Between(devices, r.blob.Rails, s.Ours, s.Theirs, known)
	room := max(1, (core.MaxLinks-len(r.links))/leastSets) // of new links: later sets want some, too
	for _, pair := range pairs {
		had := len(r.links)
		if l := r.linkOver(pair, room > 0); l != nil {
			room -= len(r.links) - had
			if l.shelved {
				l.wake()
				r.fence(l, "retry")
			}
			r.startLink(l) // unless it is up, or has begun
			p.links = append(p.links, l)
		}
	}
	if len(p.links) == 0 && len(pairs) > 0 {
		r.s.Log.Warn("no room for a link between the rails of a transfer's memory", "peer", r.name, "links", len(r.links), "most", core.MaxLinks, "rails_of_the_peer", len(r.slots),
			"most_rails", r.s.Links.Rails.Slots, "advice", "lower option max_rails")
	}
	r.open = append(r.open, p)
	r.peer.SetPairs(r.peer.Pairs(), len(r.links), true)
	r.settlePairs()
}

// widenFor asks for our memory on more rails, if those of a pairing do not reach the peer's. Under mu.
func (r *Initiator) widenFor(p *pairing, known rails.Known) {
	on := rails.Towards(r.s.Links.Rails.Devices(), r.blob.Rails, p.Ours, p.Theirs, known)
	if on == 0 {
		return
	}
	if r.s.Widen(on); on&^r.widened != 0 && known != nil {
		p.until = time.Now().Add(mostWiden)
	}
	r.widened |= on
}

// unpair forgets the links that begin, because the session's links have ended. Under mu.
func (r *Initiator) unpair() {
	r.open = nil
	r.peer.Unpair()
}

// Wider lets transfers look for links again: local memory is on more rails.
func (s *Initiators) Wider() {
	for _, r := range s.All() {
		r.peer.Events.Do(s.Life, r.lookAgain)
	}
}

// Wider tells the initiators that our host memory is on more rails.
func (s *Targets) Wider(on []*rails.Rail) {
	list := make([]wire.Rail, len(on))
	for i, r := range on {
		list[i].Number = uint8(r.Index)
	}
	for _, t := range s.All() {
		t.in.Wider(slices.Clone(list))
	}
}

// linkOver finds or adds the link over a pair of rails; nil: it may not add one, or there is no room for another. Under mu.
func (r *Initiator) linkOver(p rails.Pair, mayAdd bool) *Link {
	if i := slices.IndexFunc(r.links, func(l *Link) bool { return l.Rail.Index == p.Own && l.Peer == p.Peer }); i >= 0 {
		return r.links[i]
	}
	if !mayAdd || len(r.links) == core.MaxLinks || !r.hasSlot(p.Peer) {
		return nil
	}
	l := r.s.Links.add(len(r.links), p.Own, p.Peer)
	l.initiator, l.added, l.slot = r, true, r.slots[p.Peer]
	l.Phase = BackingOff
	r.links, r.failover.Links = append(r.links, l), append(r.failover.Links, &l.LinkState)
	return l
}

// begins reports that a link has not come up, and may yet. Under its session's lock.
func (l *Link) begins() bool {
	return !l.Proved && (l.Phase == Fencing || l.Phase == Probing && l.Epoch == 0)
}

// settlePairs tells transfers which pairings are over: none of their links begins any more. Under mu.
func (r *Initiator) settlePairs() {
	n, whole := len(r.open), true
	r.open = slices.DeleteFunc(r.open, func(p pairing) bool {
		if slices.ContainsFunc(p.links, (*Link).begins) || time.Now().Before(p.until) {
			return false
		}
		works := !slices.ContainsFunc(p.links, func(l *Link) bool { return !l.Proved })
		whole = whole && works
		r.peer.Paired(p.Sets, works)
		return true
	})
	if len(r.open) < n && r.state == ready {
		r.changeAndKick(func() {})
	}
	if !whole {
		r.s.Life.After(transfer.AskLater, r.lookAgain)
	}
}

// lookAgain lets the next posts look for links.
func (r *Initiator) lookAgain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == ready {
		r.changeAndKick(func() {})
	}
}
