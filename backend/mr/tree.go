package mr

import "math/rand/v2"

// tree is a treap of entries, ordered by first byte, then by last byte. Each node has the highest last byte of its subtree, so
// that a range around another one is found in O(log n).
type tree[H any] struct{ root *node[H] }

type node[H any] struct {
	*entry[H]
	left, right *node[H]
	priority    uint32
	maxLast     uint64 // highest last byte of the subtree
}

// before orders ranges.
func before(addr, last, addr2, last2 uint64) bool {
	return addr < addr2 || addr == addr2 && last < last2
}

func (n *node[H]) update() {
	n.maxLast = n.last
	if n.left != nil {
		n.maxLast = max(n.maxLast, n.left.maxLast)
	}
	if n.right != nil {
		n.maxLast = max(n.maxLast, n.right.maxLast)
	}
}

// find returns the entry of exactly [addr, last], or nil.
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

// cover returns an entry that contains [addr, last], or nil.
func (t *tree[H]) cover(addr, last uint64) *entry[H] {
	for n := t.root; n != nil && n.maxLast >= last; {
		switch {
		case n.addr > addr:
			n = n.left
		case n.last >= last:
			return n.entry
		case n.left != nil && n.left.maxLast >= last:
			n = n.left // all of the left subtree starts at or before addr, so its entry with that last byte covers the range
		default:
			n = n.right
		}
	}
	return nil
}

// insert adds an entry whose range is not in the tree.
func (t *tree[H]) insert(n *node[H]) {
	n.priority = rand.Uint32()
	n.left, n.right = split(t.root, n.addr, n.last)
	n.update()
	// n is the root of both halves now; move it down to its priority
	t.root = sink(n)
}

// remove removes an entry, which must be in the tree.
func (t *tree[H]) remove(e *entry[H]) { t.root = removeFrom(t.root, e) }

// split divides a treap into the entries before the range, and the rest.
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

// join merges two treaps; all of l is before all of r.
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

// sink moves a node with the two halves of a treap down to its priority.
func sink[H any](n *node[H]) *node[H] {
	l, r := n.left, n.right
	n.left, n.right = nil, nil
	n.update()
	return join(join(l, n), r)
}

func removeFrom[H any](n *node[H], e *entry[H]) *node[H] {
	switch {
	case n == nil:
		return nil
	case n.entry == e:
		return join(n.left, n.right)
	case before(e.addr, e.last, n.addr, n.last):
		n.left = removeFrom(n.left, e)
	default:
		n.right = removeFrom(n.right, e)
	}
	n.update()
	return n
}
