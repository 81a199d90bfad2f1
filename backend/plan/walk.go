package plan

import "fmt"

// Source fills dst with the pieces first, first+1, and so on. A pass asks for them in order, from 0 on. Every pass must get the
// same pieces. Each call returns a batch, because one call per piece cost 11 ns, more than all of the planning.
type Source func(first int, dst []Piece)

// batchLen is the number of pieces per call of a source. They take 4 KiB.
const batchLen = 128

// walker iterates over the pieces, drops empty ones and merges touching ones.
type walker struct {
	source  Source
	n, from int
	pending Piece   // merged so far, not returned yet; empty at the start
	buf     []Piece // buf[0] holds pending during a merge
}

func newWalker(n int, source Source) walker {
	return walker{source: source, n: n, buf: make([]Piece, 1+min(n, batchLen))}
}

// next returns the next pieces, valid until the next call; none: the end. Error: ErrRange.
func (w *walker) next() ([]Piece, error) {
	for w.from < w.n {
		in := w.buf[1:min(len(w.buf), 1+w.n-w.from)]
		w.source(w.from, in)
		w.buf[0] = w.pending
		last, err := w.merge(len(in))
		if err != nil {
			return nil, err
		}
		w.from += len(in)
		if w.pending = w.buf[last]; last > 0 {
			return w.buf[:last], nil
		}
	}
	if w.pending.Len == 0 {
		return nil, nil
	}
	w.buf[0], w.pending = w.pending, Piece{}
	return w.buf[:1], nil
}

// merge merges buf[:1+n] in place and returns the index of the last piece, which may still grow.
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
