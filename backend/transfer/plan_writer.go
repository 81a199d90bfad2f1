package transfer

import "gorail/backend/core"

import (
	"fmt"
	"math/bits"
)

// planWriter merges pieces and writes each once. Add takes single pieces, Pairs those of whole lists. The zero value of the fields is
// an empty plan.
type planWriter struct {
	core.Plan
	Many    manyPairs // a faster way for long runs of pairs; nil: none
	Threads int       // that may share the list of a call of Pairs: the caller's, and goroutines that Pairs starts; 0: 1

	taken int // pieces so far
	few   int // pairs that are taken without Many next time
	lead  int // pairs of known windows that one thread takes before several share; 0: one section
	size  int // pairs of a section, in tests; 0: perSection
}

// Full reports that Ops has no room for another piece.
func (w *planWriter) Full() bool { return w.Len == len(w.Ops) }

// Add adds a piece: it drops an empty one, and merges one that touches the last one. Ops must have room. Errors: ErrRange (naming
// the piece) and ErrTooLong.
func (w *planWriter) Add(p core.Op) error {
	w.taken++
	if p.Len == 0 {
		return nil
	}
	if p.Local+p.Len < p.Local || p.Remote+p.Len < p.Remote {
		return fmt.Errorf("%w: descriptor %d: %d bytes at local %#x, remote %#x", errRange, w.taken-1, p.Len, p.Local, p.Remote)
	}
	if w.Bytes += p.Len; (w.Bytes|p.Len)>>63 != 0 {
		return errTooLong
	}
	last := &p
	if w.Len > 0 {
		last = &w.Ops[w.Len-1]
	}
	if touches(last, &p) {
		last.Len += p.Len
	} else {
		w.Ops[w.Len] = p
		last = &w.Ops[w.Len]
		w.Len++
	}
	w.Longest = max(w.Longest, last.Len)
	return nil
}

// touches reports that p continues the piece o at both sides.
func touches(o, p *core.Op) bool {
	return o.Local+o.Len == p.Local && o.Remote+o.Len == p.Remote && o.LRegion == p.LRegion && o.RRegion == p.RRegion
}

// manyPairs adds the pieces of descriptor pairs of two windows, up to the first pair that is not inside them, or that Ops has no room for. It
// returns the number of pairs. The caller ensures that their bytes are less than 2^63 together with the plan's.
type manyPairs func(w *core.Plan, local, remote []core.Desc, l, r core.Window) int

// Pairs adds the pieces of descriptor pairs, up to the first pair that is not inside known windows or those of Around, or that Ops has no
// room for, or that Add might refuse. It returns the number of pairs. The lists have the same length. Several threads share a long list,
// and each of them calls Many and Around. When Pairs returns, nothing of the caller's is in use.
func (w *planWriter) Pairs(local, remote []core.Desc, ls, rs *windowCache) (n int) {
	w.few = many
	section, long := w.sections()
	lead, sure := max(w.lead, section), min(len(local), len(w.Ops)-w.Len)
	if w.Threads > 1 && sure >= max(long, 2*lead) {
		before := w.Len
		if n = w.alone(local[:lead], remote, ls, rs); n == lead && w.pays(w.Len-before, lead) {
			k := w.shared(local[n:sure], remote[n:sure], ls, rs)
			if n += k; k < 4*lead { // the work of the helpers behind that was in vain
				w.lead = 2 * lead
			}
		}
	}
	n += w.alone(local[n:], remote[n:], ls, rs)
	w.taken += n
	return n
}

// pays reports that it pays to share a list that begins with so many operations of so many pairs. Where some pairs merge, sections move when
// they are joined. With two threads that takes as long as the second one saves, or longer if it gets no idle processor.
func (w *planWriter) pays(ops, pairs int) bool {
	return w.Threads > 2 || ops == pairs || ops < pairs/16
}

// alone is Pairs by one thread.
func (w *planWriter) alone(local, remote []core.Desc, ls, rs *windowCache) (n int) {
	for n < len(local) {
		k := 0
		if left := len(local) - n; w.Many != nil && left >= many {
			k = w.many(local[n:], remote[n:], ls, rs)
		}
		if k < worth { // the next pairs have other windows
			w.few *= 2
			k += w.turns(local[n+k:min(n+k+w.few, len(local))], remote[n+k:], ls, rs)
		} else {
			w.few = max(w.few/2, many)
		}
		if n += k; k == 0 {
			break
		}
	}
	return n
}

// A call of Many pays from many pairs on, while the operations are in the cache, and from worth pairs on in a list of a million: there it
// takes 1.3 us, because it waits for stores to memory. After each call that took fewer, twice as many pairs as before are taken without, and
// after others half as many.
const (
	many  = 64
	worth = 1024
)

// many calls Many for pairs of known windows.
func (w *planWriter) many(local, remote []core.Desc, ls, rs *windowCache) int {
	l, r := ls.of(local[0].MD), rs.of(remote[0].MD)
	if l == nil || r == nil {
		return 0
	}
	const limit = 1<<63 - 1
	n := uint64(len(local))
	if over, most := bits.Mul64(l.Size, n); over != 0 || most > limit-w.Bytes {
		n = min(n, (limit-w.Bytes)/l.Size) // so many pairs have fewer bytes than the limit
	}
	return w.Many(&w.Plan, local[:n], remote[:n], *l, *r)
}

// turns is among, and turns to other windows of known regions on the way.
func (w *planWriter) turns(local, remote []core.Desc, ls, rs *windowCache) (n int) {
	for turned := false; ; turned = true {
		k := w.among(local[n:], remote[n:], ls, rs)
		if n += k; n == len(local) || turned && k == 0 || !ls.turn(&local[n]) || !rs.turn(&remote[n]) {
			return n
		}
	}
}

// among is Pairs for pairs of any known windows, in one loop. It assigns single fields: Go builds a whole Op on the stack and copies it in
// larger words, which wait for the smaller ones.
func (w *planWriter) among(local, remote []core.Desc, ls, rs *windowCache) int {
	l, r := &ls.Last, &rs.Last
	ops, next, bytes, longest := w.Ops, w.Len, w.Bytes, w.Longest
	var end core.Op // where the last piece ends, and its length; 0: none
	if next > 0 {
		end = ops[next-1]
		end.Local, end.Remote = end.Local+end.Len, end.Remote+end.Len
	}
	n := 0
	for remote = remote[:len(local)]; n < len(local); n++ {
		a, b := &local[n], &remote[n]
		if a.MD != l.MD {
			if l = ls.find(a.MD); l == nil {
				break
			}
		}
		if b.MD != r.MD {
			if r = rs.find(b.MD); r == nil {
				break
			}
		}
		// A window does not run past the end of the address space, so that an address before it is far behind it.
		length := a.Len
		if at := a.Addr - l.Addr; at > l.Size || length > l.Size-at || b.Len != length {
			break
		}
		if at := b.Addr - r.Addr; at > r.Size || length > r.Size-at || (bytes+length|length)>>63 != 0 {
			break
		}
		if length == 0 {
			continue
		}
		if end.Local == a.Addr && end.Remote == b.Addr && end.LRegion == l.Index && end.RRegion == r.Index && end.Len != 0 {
			end.Len += length
			ops[next-1].Len = end.Len
		} else {
			if next >= len(ops) {
				break
			}
			to := &ops[next]
			to.Local, to.Remote, to.Len, to.LRegion, to.RRegion = a.Addr, b.Addr, length, l.Index, r.Index
			end.Len, end.LRegion, end.RRegion = length, l.Index, r.Index
			next++
		}
		bytes += length
		longest = max(longest, end.Len)
		end.Local, end.Remote = a.Addr+length, b.Addr+length
	}
	w.Len, w.Bytes, w.Longest = next, bytes, longest
	return n
}

// Count returns the number of operations of the merged pieces, after Cut.
func (c planConfig) Count(w *planWriter) int {
	k := c.cutter()
	if w.Longest <= k.min {
		return w.Len
	}
	n := 0
	for i := range w.Ops[:w.Len] {
		if length := w.Ops[i].Len; length > k.min {
			n += k.count(length)
		} else {
			n++
		}
	}
	return n
}

// Cut cuts the merged pieces into operations, in place. Ops has exactly the length that Count returned.
func (c planConfig) Cut(w *planWriter) {
	k := c.cutter()
	for from, to := w.Len, len(w.Ops); from < to; { // from the end: no piece is overwritten before it is read
		from--
		to = k.cut(w.Ops[:to], w.Ops[from])
	}
	w.Len = len(w.Ops)
}
