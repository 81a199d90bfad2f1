package peer

import (
	"sync"

	"gorail/backend/wire"
)

// queue holds the frames that a session has yet to send, bounded by the memory they take. Pushing never waits. Frames are
// encoded by the writer, so their slices must not change any more.
type queue struct {
	limit int           // constant
	wake  chan struct{} // one token: there is something to take, or an end

	mu     sync.Mutex
	room   sync.Cond // on mu: bytes shrank, or the end
	frames []wire.Frame
	bytes  int  // of frames and of those taken and not yet released
	last   bool // no more frames are taken in
}

func newQueue(limit int) *queue {
	q := &queue{limit: limit, wake: make(chan struct{}, 1)}
	q.room.L = &q.mu
	return q
}

// push appends all frames or none; false says that they would be too much. After the end it drops them.
func (q *queue) push(frames ...wire.Frame) bool {
	cost := 0
	for _, f := range frames {
		cost += frameCost(f)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.last {
		return true
	}
	if q.bytes+cost > q.limit {
		return false
	}
	q.frames = append(q.frames, frames...)
	q.bytes += cost
	q.signal()
	return true
}

// finish appends a last frame, whatever the limit.
func (q *queue) finish(f wire.Frame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.last {
		q.frames = append(q.frames, f)
		q.bytes += frameCost(f)
		q.end()
	}
}

// drop ends the queue and forgets what is in it.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.frames, q.bytes = nil, 0
	q.end()
}

// take gives the next frames, about batch bytes of them, and their cost for release; end says that no more will come.
func (q *queue) take(batch int) (frames []wire.Frame, cost int, end bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for n < len(q.frames) && (n == 0 || cost < batch) {
		cost += frameCost(q.frames[n])
		n++
	}
	frames, q.frames = q.frames[:n:n], q.frames[n:]
	if len(q.frames) == 0 {
		q.frames = nil
	}
	return frames, cost, q.last && n == 0
}

// release gives back the room of frames that were written.
func (q *queue) release(cost int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.bytes = max(0, q.bytes-cost)
	q.room.Broadcast()
}

// waitRoom waits until half of the queue is free, or the end. The reader of a target does so, to answer no faster than the
// initiator reads; an initiator's reader never waits, so the two can't wait for each other.
func (q *queue) waitRoom() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.last && q.bytes > q.limit/2 {
		q.room.Wait()
	}
}

// end is called with mu held.
func (q *queue) end() {
	q.last = true
	q.room.Broadcast()
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// frameCost is about the memory that a frame takes while it waits.
func frameCost(f wire.Frame) int {
	const base, perRange, perEntry, perRail = 64, 32, 48, 24
	switch f := f.(type) {
	case *wire.KeysReq:
		return base + perRange*len(f.Ranges)
	case *wire.Keys:
		n := base + perEntry*len(f.Entries)
		for _, e := range f.Entries {
			n += perRail * len(e.Rails)
		}
		return n
	case *wire.Revoke:
		return base + 8*len(f.Regions)
	case *wire.Fence:
		return base + len(f.Addr)
	case *wire.Fenced:
		return base + len(f.Addr)
	case *wire.Bye:
		return base + len(f.Text)
	}
	return base
}
