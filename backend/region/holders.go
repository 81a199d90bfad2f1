package region

// holders notes which sessions hold keys of which local regions: one bit for each session and index of the table. A
// session with the keys of 100,000 regions costs 12 KiB; a map entry for each key costs 33 bytes instead. Registry.mu
// guards it. Make it with newHolders.
type holders struct {
	place map[Holder]int // in list
	list  []holding      // a slice: each deregistration looks at all
}

type holding struct {
	by   Holder
	bits []uint64
}

func newHolders() *holders { return &holders{place: map[Holder]int{}} }

// bit is the place of a region: the index of its id in the table.
func bit(id uint64) (word int, mask uint64) {
	index := uint32(id)
	return int(index / 64), 1 << (index % 64)
}

// note notes that a session gets the keys of a region.
func (h *holders) note(by Holder, id uint64) {
	at, known := h.place[by]
	if !known {
		at = len(h.list)
		h.place[by] = at
		h.list = append(h.list, holding{by: by})
	}
	word, mask := bit(id)
	bits := &h.list[at].bits
	if more := word + 1 - len(*bits); more > 0 {
		*bits = append(*bits, make([]uint64, more)...) //limit:holders
	}
	(*bits)[word] |= mask
}

// take returns the sessions that hold keys of a region, and forgets it: its index may get another region.
func (h *holders) take(id uint64) (list []Holder) {
	word, mask := bit(id)
	for _, s := range h.list {
		if word < len(s.bits) && s.bits[word]&mask != 0 {
			s.bits[word] &^= mask
			list = append(list, s.by)
		}
	}
	return list
}

// drop forgets a session.
func (h *holders) drop(by Holder) {
	at, known := h.place[by]
	if !known {
		return
	}
	last := len(h.list) - 1
	h.list[at] = h.list[last]
	h.place[h.list[at].by] = at
	h.list[last] = holding{}
	h.list = h.list[:last]
	delete(h.place, by)
}
