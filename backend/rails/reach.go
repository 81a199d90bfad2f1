package rails

import (
	"slices"

	"gorail/backend/wire"
)

// Reach is what is known of a pair of rails.
type Reach uint8

const (
	Unknown Reach = iota
	Works         // messages have gone both ways
	Apart         // it did not connect: the network may join some rails alone, though all are in one subnet
)

// Known tells what is known of pairs, by index on each side. nil: nothing.
type Known func(own, peer int) Reach

// pairs are pairs of two lists of rails, by place in the lists. Each rail is in one, if it reaches another.
type pairs struct {
	left, right []wire.RailOffer
	known       Known
	used        [2][]int // how many pairs each rail of a side is in
	of          []int    // by place in right: its partner in the matching, or -1
	out         [][2]int
}

// pairUp pairs rails by number. If such a pair is apart, pairs that work come first, then those that nobody has tried, one for each rail; then rails that
// are left over share partners. A rail that is apart from all keeps its pair by number if that one's other rail works with none: either may be broken.
func pairUp(left, right []wire.RailOffer, known Known) [][2]int {
	p := &pairs{left: left, right: right, known: known, used: [2][]int{make([]int, len(left)), make([]int, len(right))}}
	apart := false
	for i := range max(len(left), len(right)) {
		l, r := i%len(left), i%len(right)
		p.out = append(p.out, [2]int{l, r})
		apart = apart || p.reach(l, r) == Apart
	}
	if !apart {
		return p.out
	}
	byNumber := p.out
	p.out = nil
	p.match(Works)
	p.match(Unknown)
	p.share()
	for _, pair := range byNumber {
		if l, r := pair[0], pair[1]; p.used[0][l] == 0 && p.used[1][r] == 0 {
			p.take(l, r)
		}
	}
	return p.out
}

func (p *pairs) reach(l, r int) Reach {
	if p.known == nil {
		return Unknown
	}
	return p.known(int(p.left[l].Index), int(p.right[r].Index))
}

func (p *pairs) take(l, r int) {
	p.out = append(p.out, [2]int{l, r})
	p.used[0][l]++
	p.used[1][r]++
}

// match finds a largest matching of such pairs among the rails that are in none.
func (p *pairs) match(want Reach) {
	p.of = slices.Repeat([]int{-1}, len(p.right))
	for l := range p.left {
		if p.used[0][l] == 0 {
			p.augment(l, want, make([]bool, len(p.right)))
		}
	}
	for r, l := range p.of {
		if l >= 0 {
			p.take(l, r)
		}
	}
}

// augment finds a partner for a rail: a free one, else one whose partner finds another.
func (p *pairs) augment(l int, want Reach, seen []bool) bool {
	list := slices.DeleteFunc(p.partners(l), func(r int) bool { return p.used[1][r] > 0 || p.reach(l, r) != want })
	for _, r := range list {
		if p.of[r] < 0 {
			p.of[r] = l
			return true
		}
	}
	for _, r := range list {
		if seen[r] {
			continue
		}
		if seen[r] = true; p.augment(p.of[r], want, seen) {
			p.of[r] = l
			return true
		}
	}
	return false
}

// partners are all rails of the right side: that of the same number, those of the same name, then the others from there on.
func (p *pairs) partners(l int) []int {
	n := len(p.right)
	list := []int{l % n}
	for _, alike := range []bool{true, false} {
		for i := 1; i < n; i++ {
			if r := (l + i) % n; (p.right[r].Name == p.left[l].Name) == alike {
				list = append(list, r)
			}
		}
	}
	return list
}

// share gives rails that are in no pair the partner with the fewest pairs: one that works, else one that nobody has tried.
func (p *pairs) share() {
	for side := range p.used {
		for i := range p.used[side] {
			best := [2]int{-1, -1}
			for j := range p.used[1-side] {
				pair := [2]int{i, j}
				if side == 1 {
					pair = [2]int{j, i}
				}
				if p.used[side][i] == 0 && p.reach(pair[0], pair[1]) != Apart && (best[0] < 0 || p.better(pair, best, 1-side)) {
					best = pair
				}
			}
			if best[0] >= 0 {
				p.take(best[0], best[1])
			}
		}
	}
}

// better reports that a rail shares a partner rather than another one. side is the partners'.
func (p *pairs) better(a, b [2]int, side int) bool {
	if x, y := p.reach(a[0], a[1]) == Works, p.reach(b[0], b[1]) == Works; x != y {
		return x
	}
	return p.used[side][a[side]] < p.used[side][b[side]]
}

// beyond returns our rails that may reach one of the peer's, if ours are apart from all of these: those that are known to, else those of the same
// names, else one for each that nobody has tried.
func beyond(own, peer []wire.RailOffer, ours, theirs uint64, known Known) uint64 {
	var works, alike, untried uint64
	for _, o := range peer {
		if o.Index > 63 || theirs&(1<<o.Index) == 0 || o.Loopback || len(o.Proof) > 0 {
			continue
		}
		one := false
		for _, a := range own {
			reach := known(int(a.Index), int(o.Index))
			switch mask := uint64(1) << a.Index; {
			case a.Fabric != o.Fabric || a.Shard != o.Shard || a.Loopback || reach == Apart:
			case ours&mask != 0:
				return 0
			case reach == Works:
				works |= mask
			case a.Name == o.Name:
				alike |= mask
			case !one && untried&mask == 0:
				untried, one = untried|mask, true
			}
		}
	}
	switch {
	case works != 0:
		return works
	case alike != 0:
		return alike
	}
	return untried
}
