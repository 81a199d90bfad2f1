package mr

import "math/rand/v2"

// tree is a treap of entries, ordered by first and then by last byte; each node knows the highest last byte below it, so that
// a range around a given one is found in O(log n).
type tree[H any] struct{ root *node[H] }

type node[H any] struct {
	*entry[H]
	left, right *node[H]
	priority    uint32
	reach       uint64 // highest last byte of the subtree
}

// before orders ranges.
func before(addr, last, addr2, last2 uint64) bool {
	return addr < addr2 || addr == addr2 && last < last2
}

func (n *node[H]) update() {
	n.reach = n.last
	if n.left != nil {
		n.reach = max(n.reach, n.left.reach)
	}
	if n.right != nil {
		n.reach = max(n.reach, n.right.reach)
	}
}

// find gives the entry of exactly [addr, last], or nil.
func (t *tree[H]) find(addr, last uint64) *entry[H] {
	for n := t.root; n != nil; {
		switch {
		case n.addr == addr && n.last == last:
			return n.entry
		case before(addr, last, n.addr, n.last):
			n = n.left
		default:
			n = n.right
		}
	}
	return nil
}

// cover gives some entry that contains [addr, last], or nil.
func (t *tree[H]) cover(addr, last uint64) *entry[H] {
	for n := t.root; n != nil && n.reach >= last; {
		switch {
		case n.addr > addr:
			n = n.left
		case n.last >= last:
			return n.entry
		case n.left != nil && n.left.reach >= last:
			n = n.left // all of it starts at or before addr, so the one that reaches so far covers
		default:
			n = n.right
		}
	}
	return nil
}

// insert adds an entry whose range isn't there.
func (t *tree[H]) insert(e *entry[H]) {
	n := &node[H]{entry: e, priority: rand.Uint32()}
	n.left, n.right = split(t.root, e.addr, e.last)
	n.update()
	// n is above its halves now; sink it to where its priority belongs
	t.root = sink(n)
}

// remove takes the entry out; it must be there.
func (t *tree[H]) remove(e *entry[H]) { t.root = without(t.root, e) }

// split cuts a treap into what is before the range and the rest.
func split[H any](n *node[H], addr, last uint64) (l, r *node[H]) {
	if n == nil {
		return nil, nil
	}
	if before(n.addr, n.last, addr, last) {
		n.right, r = split(n.right, addr, last)
		n.update()
		return n, r
	}
	l, n.left = split(n.left, addr, last)
	n.update()
	return l, n
}

// join merges two treaps, all of l before all of r.
func join[H any](l, r *node[H]) *node[H] {
	switch {
	case l == nil:
		return r
	case r == nil:
		return l
	case l.priority >= r.priority:
		l.right = join(l.right, r)
		l.update()
		return l
	default:
		r.left = join(l, r.left)
		r.update()
		return r
	}
}

// sink puts a node that carries the two halves of a treap where its priority belongs.
func sink[H any](n *node[H]) *node[H] {
	l, r := n.left, n.right
	n.left, n.right = nil, nil
	n.update()
	return join(join(l, n), r)
}

func without[H any](n *node[H], e *entry[H]) *node[H] {
	switch {
	case n == nil:
		return nil
	case n.entry == e:
		return join(n.left, n.right)
	case before(e.addr, e.last, n.addr, n.last):
		n.left = without(n.left, e)
	default:
		n.right = without(n.right, e)
	}
	n.update()
	return n
}
