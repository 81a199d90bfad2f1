package plan

import "math/bits"

// shares deals items out: an item goes to the link in whose share of [0, total) its middle lies.
type shares struct {
	order []int    // links with a weight, from Config.First on
	ends  []uint64 // where each one's share ends
	at    uint64   // bytes dealt
	first int      // operations dealt
	cur   int      // index in order
	parts []Part

	run      uint64 // bytes of the small operations that wait for a full item
	runCount int
}

func (c Config) shares(total uint64) *shares {
	n := len(c.Weights)
	s := &shares{order: make([]int, 0, n), ends: make([]uint64, 0, n), parts: make([]Part, 0, n)}
	equal := true
	shift := 0 // keeps the sum of the weights within 64 bits
	for _, w := range c.Weights {
		equal = equal && w == 0
		shift = max(shift, bits.Len64(w)+bits.Len(uint(n))-64)
	}
	weight := func(l int) uint64 {
		if equal {
			return 1
		}
		if c.Weights[l] == 0 {
			return 0
		}
		return max(1, c.Weights[l]>>shift)
	}
	var sum, upTo uint64
	for l := range n {
		sum += weight(l)
	}
	for i := range n {
		l := (i + c.First%n + n) % n
		if w := weight(l); w > 0 {
			upTo += w
			hi, lo := bits.Mul64(total, upTo)
			end, _ := bits.Div64(hi, lo, sum)
			s.order = append(s.order, l)
			s.ends = append(s.ends, end)
		}
	}
	return s
}

// only is the one link with a weight.
func (c Config) only() int {
	for l, w := range c.Weights {
		if w > 0 {
			return l
		}
	}
	return 0
}

// small adds one small operation to the waiting run.
func (s *shares) small(length, most uint64) {
	if s.runCount == RunLen || s.run+length > most {
		s.flush()
	}
	s.run += length
	s.runCount++
}

// flush deals the waiting run out.
func (s *shares) flush() {
	if s.runCount > 0 {
		s.item(s.run, s.runCount)
		s.run, s.runCount = 0, 0
	}
}

// item deals out one item of so many operations.
func (s *shares) item(length uint64, count int) {
	middle := s.at + length/2
	for s.cur < len(s.ends)-1 && middle >= s.ends[s.cur] {
		s.cur++
	}
	link := s.order[s.cur]
	if last := len(s.parts) - 1; last >= 0 && s.parts[last].Link == link {
		s.parts[last].Count += count
		s.parts[last].Bytes += length
	} else {
		s.parts = append(s.parts, Part{Link: link, First: s.first, Count: count, Bytes: length})
	}
	s.at += length
	s.first += count
}
