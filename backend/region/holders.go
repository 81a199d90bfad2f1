package region

// holders notes which sessions hold keys of which local regions: one bit for each session and index of the table. A
// session that asks for all keys of 100,000 regions so costs 12 KiB. Registry.mu guards it.
type holders map[Holder][]uint64

// bit is the place of a region: the index of its id in the table.
func bit(id uint64) (word int, mask uint64) {
	index := uint32(id)
	return int(index / 64), 1 << (index % 64)
}

// note notes that a session gets the keys of a region.
func (h holders) note(t Holder, id uint64) {
	word, mask := bit(id)
	bits := h[t]
	if more := word + 1 - len(bits); more > 0 {
		bits = append(bits, make([]uint64, more)...) //limit:holders
		h[t] = bits
	}
	bits[word] |= mask
}

// take returns the sessions that hold keys of a region, and forgets it: its index may get another region.
func (h holders) take(id uint64) (list []Holder) {
	word, mask := bit(id)
	for t, bits := range h {
		if word < len(bits) && bits[word]&mask != 0 {
			bits[word] &^= mask
			list = append(list, t)
		}
	}
	return list
}
