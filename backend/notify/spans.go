package notify

import "slices"

// span is the bytes [from, to) of a body.
type span struct{ from, to uint32 }

// spans are the byte ranges of a body that have arrived: ordered, disjoint and not adjacent. Fragments in order keep
// a single span.
type spans []span

// add adds [offset, offset+n) and reports whether any byte of it is new.
func (s *spans) add(offset, n uint32) bool {
	if n == 0 {
		return false
	}
	add := span{offset, offset + n}
	// the first span that touches or overlaps the new one, and the first after it that does not
	first, _ := slices.BinarySearchFunc(*s, add.from, func(e span, from uint32) int {
		if e.to < from {
			return -1
		}
		return 1
	})
	last := first
	for last < len(*s) && (*s)[last].from <= add.to {
		last++
	}
	if last > first {
		if old := (*s)[first]; old.from <= add.from && old.to >= add.to {
			return false
		}
		add.from = min(add.from, (*s)[first].from)
		add.to = max(add.to, (*s)[last-1].to)
	}
	*s = slices.Replace(*s, first, last, add)
	return true
}

// covers reports whether all bytes [0, total) have arrived.
func (s spans) covers(total uint32) bool {
	return total == 0 || len(s) == 1 && s[0] == span{0, total}
}
