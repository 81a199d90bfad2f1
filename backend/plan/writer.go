package plan

import "fmt"

// batchLen is the number of pieces of a batch, 8 KiB: the merge reads what the caller has just written.
const batchLen = 256

// Writer merges pieces in place. It repeats: the caller writes pieces to Room and calls Merge. The zero value of the fields is
// an empty plan.
type Writer struct {
	Ops     []Op   // the memory; the merged pieces are the first Len
	Len     int    // merged pieces so far; the last one may still grow
	Bytes   uint64 // total bytes
	Longest uint64 // of the merged pieces, in bytes

	taken int // pieces so far
}

// Room returns memory for the next pieces, at most a batch; none: Ops is full. The caller may move the plan to larger memory
// and set Ops.
func (w *Writer) Room() []Op { return w.Ops[w.Len:min(w.Len+batchLen, len(w.Ops))] }

// Merge takes the first n pieces of Room. It drops empty pieces and merges touching ones. Errors: ErrRange (naming the piece)
// and ErrTooLong.
func (w *Writer) Merge(n int) error {
	in := w.Ops[w.Len : w.Len+n]
	out := w.Ops[:w.Len+n]
	next, bytes, longest := w.Len, w.Bytes, w.Longest
	var length, local, remote uint64 // of the last piece: its length, and where it ends
	var lregion, rregion uint32
	if next > 0 {
		last := &out[next-1]
		length, local, remote, lregion, rregion = last.Len, last.Local+last.Len, last.Remote+last.Len, last.LRegion, last.RRegion
	}
	for i := range in {
		p := &in[i]
		if p.Len == 0 {
			continue
		}
		lend, rend := p.Local+p.Len, p.Remote+p.Len
		if lend < p.Local || rend < p.Remote {
			return fmt.Errorf("%w: descriptor %d: %d bytes at local %#x, remote %#x", ErrRange, w.taken+i, p.Len, p.Local, p.Remote)
		}
		if bytes += p.Len; (bytes|p.Len)>>63 != 0 {
			return ErrTooLong
		}
		if local == p.Local && remote == p.Remote && lregion == p.LRegion && rregion == p.RRegion && length != 0 {
			length += p.Len
			out[next-1].Len = length
		} else {
			length, lregion, rregion = p.Len, p.LRegion, p.RRegion
			if to := &out[next]; to != p {
				*to = *p
			}
			next++
		}
		local, remote = lend, rend
		longest = max(longest, length)
	}
	w.Len, w.Bytes, w.Longest, w.taken = next, bytes, longest, w.taken+n
	return nil
}

// Count returns the number of operations of the merged pieces, after Cut.
func (c Config) Count(w *Writer) int {
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
func (c Config) Cut(w *Writer) {
	k := c.cutter()
	for from, to := w.Len, len(w.Ops); from < to; { // from the end: no piece is overwritten before it is read
		from--
		to = k.cut(w.Ops[:to], w.Ops[from])
	}
	w.Len = len(w.Ops)
}
