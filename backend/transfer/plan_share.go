package transfer

import "gorail/backend/core"

import (
	"sync"
	"sync/atomic"
)

// LongList is the number of pairs from which on several threads share a list. Two on idle cores take 0.65 of the time of one there
// [m: docs/performance.md].
const LongList = 100_000

// perSection is the number of pairs that a thread takes at a time: 20 us [m: docs/performance.md].
const perSection = 8 << 10

// helpers is the largest number of threads beside the caller's.
const planHelpers = 4

// share is Pairs by several threads. They take sections of the list in turn, and write each to its own part of Ops, which has room for
// all of its pairs. Sections are joined in order while later ones are written. The caller waits for sections that others have begun, and
// for nothing else: a helper that starts late finds no section, and looks at no list.
type share struct {
	local, remote []core.Desc
	ls, rs        windowCache
	size          int          // pairs of a section
	n             int64        // sections
	next          atomic.Int64 // the next section

	mu      sync.Mutex // guards the rest
	idle    sync.Cond  // no section is in work
	parts   []section  // the sections; one that is not written is its thread's
	done    int64      // sections that are written, and joined if it was their turn
	begun   int64      // sections, once closed
	closed  bool       // no thread begins another section
	joining bool       // a thread joins: it alone uses out and pairs, without mu
	stopped bool       // no more sections are joined

	joined int        // sections
	pairs  int        // theirs
	out    planWriter // the plan with them
}

// part is a section. Its Ops are its part of the plan's: one for each pair.
type section struct {
	planWriter
	n       int // pairs
	written bool
}

// sections returns the number of pairs of a section, and of the shortest list that is shared.
func (w *planWriter) sections() (section, shortest int) {
	if w.size > 0 {
		return w.size, 2 * w.size
	}
	return perSection, LongList
}

// shared is Pairs by several threads. Ops has room for all pairs.
func (w *planWriter) shared(local, remote []core.Desc, ls, rs *windowCache) int {
	s := w.share(local, remote, ls, rs)
	for range min(w.Threads-1, planHelpers, len(s.parts)-1) {
		go s.work()
	}
	s.work()
	return s.end(w)
}

func (w *planWriter) share(local, remote []core.Desc, ls, rs *windowCache) *share {
	size, _ := w.sections()
	n := (len(local) + size - 1) / size
	s := &share{local: local, remote: remote, ls: *ls, rs: *rs, size: size, n: int64(n), parts: make([]section, n), out: *w}
	s.idle.L = &s.mu
	ops := w.Ops[w.Len : w.Len+len(local)]
	for i := range s.parts {
		s.parts[i].planWriter = planWriter{Plan: core.Plan{Ops: ops[i*size : min((i+1)*size, len(ops))]}, Many: w.Many, few: w.few}
	}
	return s
}

// end waits for the sections that others have begun, takes the plan over, and returns the number of its pairs. A helper that starts later
// still has s, but no lists.
func (s *share) end(w *planWriter) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.close(); s.done < s.begun; {
		s.idle.Wait()
	}
	w.Len, w.Bytes, w.Longest = s.out.Len, s.out.Bytes, s.out.Longest
	s.local, s.remote, s.ls, s.rs, s.parts, s.out = nil, nil, windowCache{}, windowCache{}, nil, planWriter{}
	return s.pairs
}

// work writes sections until none is left.
func (s *share) work() {
	for {
		i := s.next.Add(1) - 1
		if i >= s.n {
			return
		}
		p, from := &s.parts[i], int(i)*s.size
		to := from + len(p.Ops)
		ls, rs := s.ls, s.rs
		p.n = p.alone(s.local[from:to], s.remote[from:to], &ls, &rs)
		s.finish(p)
	}
}

// close lets no thread begin another section. The caller holds mu.
func (s *share) close() {
	if !s.closed {
		s.closed, s.begun = true, min(s.next.Swap(s.n), s.n)
	}
}

// finish takes a section in. Unless another thread is at that, it joins the sections whose turn it is.
func (s *share) finish(p *section) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.written = true
	if !s.joining {
		s.joining = true
		for !s.stopped && s.joined < len(s.parts) && s.parts[s.joined].written {
			p := &s.parts[s.joined]
			s.mu.Unlock()
			whole := s.join(p)
			s.mu.Lock()
			if s.joined++; !whole {
				s.stopped = true
				s.close()
			}
		}
		s.joining = false
	}
	if s.done++; s.closed && s.done == s.begun {
		s.idle.Signal()
	}
}

// join appends a section to the plan. false: nothing may follow it.
func (s *share) join(p *section) (whole bool) {
	w := &s.out
	if (w.Bytes+p.Bytes)>>63 != 0 {
		return false // one thread finds the pair that is too much
	}
	ops := p.Ops[:p.Len]
	if w.Len > 0 && len(ops) > 0 {
		if last := &w.Ops[w.Len-1]; touches(last, &ops[0]) {
			last.Len += ops[0].Len
			w.Longest = max(w.Longest, last.Len)
			ops = ops[1:]
		}
	}
	copy(w.Ops[w.Len:], ops) // nothing moves before the first two that touch
	w.Len, w.Bytes, w.Longest = w.Len+len(ops), w.Bytes+p.Bytes, max(w.Longest, p.Longest)
	s.pairs += p.n
	return p.n == len(p.Ops)
}
