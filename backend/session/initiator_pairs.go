package session

// Links that begin when memory needs them. A wide engine (rails.Set.Wide) registers memory on the rails near to it. So the rails of a
// transfer are those of its memory on both sides, and their pairs are known with the keys.

import (
	"slices"

	"gorail/backend/core"
	"gorail/backend/rails"
	"gorail/backend/transfer"
	"gorail/backend/wire"
)

// firstLinks is how many links a session with a wide engine begins with: one carries the notifications, another replaces it.
const firstLinks = 2

// pairings are the pairs that transfers need. Under Initiator.mu.
type pairings struct {
	wide  bool        // links begin when transfers need them
	slots map[int]int // by the peer's rail: its place in the core's table of keys
	open  []pairing
}

// pairing is a pair of sets of rails whose links begin.
type pairing struct {
	transfer.Sets
	links []*Link
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
	return rails.Between(r.s.Links.Rails.Devices(), r.usableRails(), ^uint64(0), ^uint64(0))
}

// firstPairs are the pairs of a Hello with a wide engine: of rails that all host memory is on, and as few others as it takes. As use.
func (r *Initiator) firstPairs() (out []rails.Pair) {
	set, usable := r.s.Links.Rails, r.usableRails()
	var ours, theirs uint64
	for i := range set.List {
		if set.Common(i) {
			ours |= 1 << i
		}
	}
	for _, o := range usable {
		if !o.Idle {
			theirs |= 1 << (o.Index & 63)
		}
	}
	home := set.For(rails.Place{Node: -1})
	for _, masks := range [][2]uint64{{ours, theirs}, {ours | home, theirs}, {ours | home, ^uint64(0)}, {^uint64(0), ^uint64(0)}} {
		for _, p := range rails.Between(set.Devices(), usable, masks[0], masks[1]) {
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
	return true
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
	devices, usable := r.s.Links.Rails.Devices(), r.usableRails()
	if on := rails.Towards(devices, usable, s.Ours, s.Theirs); on != 0 {
		r.s.Widen(on)
	}
	pairs := rails.Between(devices, usable, s.Ours, s.Theirs)
	for _, pair := range pairs {
		if l := r.linkOver(pair); l != nil {
			r.startLink(l) // unless it is up, or has begun
			p.links = append(p.links, l)
		}
	}
	r.open = append(r.open, p)
	r.peer.SetPairs(r.possible(), len(r.links), true)
	r.settlePairs()
}

// unpair forgets the links that begin, because the session's links have ended. Under mu.
func (r *Initiator) unpair() {
	r.open = nil
	r.peer.Unpair()
}

// Wider asks for the keys of regions that the peer has registered on more rails. Implements peer.InitiatorHandler.
func (c *conn) Wider(on []wire.Rail) {
	r := c.r
	if !r.s.Life.Enter() {
		return
	}
	defer r.s.Life.Leave()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state != ready || !c.current() {
		return
	}
	for _, rail := range on {
		if r.takesKey(int(rail.Number)) {
			r.askAgain(int(rail.Number))
		}
	}
}

// Wider lets transfers look for links again: local memory is on more rails.
func (s *Initiators) Wider() {
	for _, r := range s.All() {
		r.peer.Events.Do(s.Life, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.state == ready {
				r.changeAndKick(func() {})
			}
		})
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

// linkOver finds or adds the link over a pair of rails; nil: there is no room for another. Under mu.
func (r *Initiator) linkOver(p rails.Pair) *Link {
	if i := slices.IndexFunc(r.links, func(l *Link) bool { return l.Rail.Index == p.Own && l.Peer == p.Peer }); i >= 0 {
		return r.links[i]
	}
	if len(r.links) == core.MaxLinks || !r.hasSlot(p.Peer) {
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

// settlePairs tells transfers of the pairs of which no link begins any more. Under mu.
func (r *Initiator) settlePairs() {
	n := len(r.open)
	r.open = slices.DeleteFunc(r.open, func(p pairing) bool {
		if slices.ContainsFunc(p.links, (*Link).begins) {
			return false
		}
		r.peer.Paired(p.Sets)
		return true
	})
	if len(r.open) < n && r.state == ready {
		r.changeAndKick(func() {})
	}
}
