package notify

// Window tells fresh numbers from repeated ones, for numbers that arrive roughly in order: it remembers the last `size`.
// Not safe for concurrent use.
type Window struct {
	bits []uint64
	size uint64
	next uint64 // one above the highest number seen
}

// NewWindow makes a window over the last size numbers, rounded up to a multiple of 64.
func NewWindow(size int) *Window {
	words := max(1, (size+63)/64)
	return &Window{bits: make([]uint64, words), size: uint64(words) * 64}
}

// Fresh notes seq and says whether it is seen for the first time. A number that has fallen out of the window can't be
// told and counts as seen: dropping a late message is an error that a sender's deadline finds, delivering one twice is not.
func (w *Window) Fresh(seq uint64) bool {
	if seq == ^uint64(0) {
		return false // no room for next
	}
	if seq >= w.next {
		w.clear(seq)
		w.next = seq + 1
	} else if w.next-seq > w.size {
		return false
	}
	word, bit := &w.bits[seq%w.size/64], uint64(1)<<(seq%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}

// clear empties the places of [next, seq].
func (w *Window) clear(seq uint64) {
	if seq-w.next >= w.size {
		clear(w.bits)
		return
	}
	for s := w.next; s <= seq; s++ {
		w.bits[s%w.size/64] &^= 1 << (s % 64)
	}
}
