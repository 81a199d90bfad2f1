package plan

import "fmt"

// Source gives pieces: it fills dst with those numbered first, first+1, ... A pass asks for them in order, from 0 on, and
// must be given the same ones as every other. A
// batch for each call, because a call for each piece cost 11 ns, more than all of the planning.
type Source func(first int, dst []Piece)

// batchLen is how many pieces a source is asked for at once: 4 KiB of them.
const batchLen = 128

// walker goes over the pieces with empty ones dropped and touching ones merged.
type walker struct {
	source  Source
	n, from int
	carry   Piece   // merged so far, not given yet; empty at the start
	buf     []Piece // buf[0] is for the carry
}

func newWalker(n int, source Source) walker {
	return walker{source: source, n: n, buf: make([]Piece, 1+min(n, batchLen))}
}

// next gives the next pieces, valid until the next call; none at the end. ErrRange.
func (w *walker) next() ([]Piece, error) {
	for w.from < w.n {
		in := w.buf[1:min(len(w.buf), 1+w.n-w.from)]
		w.source(w.from, in)
		w.buf[0] = w.carry
		last, err := w.merge(len(in))
		if err != nil {
			return nil, err
		}
		w.from += len(in)
		if w.carry = w.buf[last]; last > 0 {
			return w.buf[:last], nil
		}
	}
	if w.carry.Len == 0 {
		return nil, nil
	}
	w.buf[0], w.carry = w.carry, Piece{}
	return w.buf[:1], nil
}

// merge merges buf[:1+n] in place and gives the index of the last piece, which may still grow.
func (w *walker) merge(n int) (last int, err error) {
	buf := w.buf[:1+n]
	cur := &buf[0]
	for i := 1; i < len(buf); i++ {
		p := &buf[i]
		if p.Len == 0 {
			continue
		}
		if p.Local+p.Len < p.Local || p.Remote+p.Len < p.Remote {
			return 0, fmt.Errorf("%w: descriptor %d: %d bytes at local %#x, remote %#x",
				ErrRange, w.from+i-1, p.Len, p.Local, p.Remote)
		}
		if cur.Local+cur.Len == p.Local && cur.Remote+cur.Len == p.Remote &&
			cur.LRegion == p.LRegion && cur.RRegion == p.RRegion && cur.Len != 0 {
			cur.Len += p.Len
			continue
		}
		if cur.Len != 0 {
			last++
		}
		cur = &buf[last]
		*cur = *p
	}
	return last, nil
}
