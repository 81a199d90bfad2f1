package stream

import (
	"sync"
	"sync/atomic"

	"gorail/backend/wire"
)

// maxAsked bounds the keys requests that are on their way, by weight. Answers are many times larger than requests, and the
// target keeps them until they are acknowledged, which every later request does: so they never take more than 4 MiB there.
const maxAsked = 4 * (wire.MaxRanges + 1)

// queue holds the frames that a stream has yet to send, and those that the other side has not acknowledged, bounded by
// the memory they take. Pushing never waits. Frames are encoded by the writer, and again for each connection that they go over,
// so their slices must not change any more.
type queue struct {
	limit int           // constant
	total *atomic.Int64 // of all streams that we serve; nil: it is not counted there
	wake  chan struct{} // one token: there is something to take, or an end

	mu     sync.Mutex
	room   sync.Cond // on mu: unsent shrank, there is no connection, or the end
	items  []item    // oldest first
	base   uint64    // number of items[0]: so many frames are acknowledged
	next   int       // items[next:] have not been taken for the present connection
	high   uint64    // frames of lower numbers have been taken for some connection
	bytes  int       // cost of all items
	unsent int       // cost of items[next:]
	asked  int       // weight of the keys requests that were taken and have no answer
	owed   bool      // a Ping has no answer yet,
	seq    uint64    // which is to have this number
	last   bool      // no more frames are taken in
	idle   bool      // there is no connection, so nothing is written
}

type item struct {
	frame wire.Frame
	cost  int
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
	q.append(frames...)
	return true
}

// finish appends a last frame, whatever the limit.
func (q *queue) finish(f wire.Frame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.last {
		q.append(f)
		q.end()
	}
}

// append is called with mu held.
func (q *queue) append(frames ...wire.Frame) {
	for _, f := range frames {
		it := item{f, frameCost(f)}
		q.items = append(q.items, it)
		q.hold(it.cost)
		q.unsent += it.cost
	}
	q.signal()
}

// drop ends the queue and forgets what is in it.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hold(-q.bytes)
	q.items, q.next, q.unsent, q.owed = nil, 0, 0, false
	q.end()
}

// take appends the next frames to to, about batch bytes of them, with their cost; end says that no more will come.
func (q *queue) take(to []wire.Frame, batch int) (frames []wire.Frame, cost int, end bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	frames = to
	for q.next < len(q.items) && cost < batch {
		it := q.items[q.next]
		if number := q.base + uint64(q.next); number >= q.high {
			w := askWeight(it.frame)
			if q.asked > 0 && q.asked+w > maxAsked && w > 0 && !q.last {
				break
			}
			q.asked += w
			q.high = number + 1
		}
		q.next++
		cost += it.cost
		frames = append(frames, it.frame)
	}
	if cost > 0 {
		q.unsent -= cost
		q.room.Broadcast()
	}
	return frames, cost, q.last && cost == 0
}

// ack forgets the frames with numbers below got; false for a number that the other side can't have reached. One that was
// heard before changes nothing.
func (q *queue) ack(got uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.forget(got)
}

// resumable says whether rewind would succeed.
func (q *queue) resumable(got uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.base <= got && got <= q.high
}

// rewind begins with a new connection, whose other side has got so many frames: what it has not comes again. resent frames had
// been taken for an earlier connection. false, and nothing is changed, for a number that can't be.
func (q *queue) rewind(got uint64) (resent uint64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if got < q.base || !q.forget(got) {
		return 0, false
	}
	resent = uint64(q.next)
	q.next, q.unsent = 0, q.bytes
	q.idle = false
	q.owed = false // by the connection that is gone
	return resent, true
}

// unplug says that there is no connection until rewind.
func (q *queue) unplug() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle = true
	q.room.Broadcast()
}

// forget is called with mu held.
func (q *queue) forget(got uint64) bool {
	if q.last {
		return true
	}
	if got > q.high {
		return false
	}
	if got <= q.base {
		return true
	}
	n := int(got - q.base)
	for k, it := range q.items[:n] {
		q.hold(-it.cost)
		if k >= q.next {
			q.unsent -= it.cost
		}
	}
	clear(q.items[:n])
	if q.items = q.items[n:]; len(q.items) == 0 {
		q.items = nil
	}
	q.base, q.next = got, max(0, q.next-n)
	q.room.Broadcast()
	return true
}

// hold counts frames that are kept, or are no more. With mu held.
func (q *queue) hold(cost int) {
	q.bytes += cost
	if q.total != nil {
		q.total.Add(int64(cost))
	}
}

// kept is the cost of what is queued or not acknowledged.
func (q *queue) kept() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}

// acked is how many frames the other side has acknowledged.
func (q *queue) acked() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.base
}

// answered makes room for further keys requests.
func (q *queue) answered(ranges int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = max(0, q.asked-ranges-1)
	q.signal()
}

// pong notes that a Ping wants an answer; those that come before the writer gets to it share one.
func (q *queue) pong(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.last {
		q.owed, q.seq = true, seq
		q.signal()
	}
}

// takePong gives the Ping that is to be answered.
func (q *queue) takePong() (seq uint64, owed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	owed, q.owed = q.owed, false
	return q.seq, owed
}

// waitRoom waits until no more than half of the queue's limit is yet to be written, there is no connection, or the end. The reader of a
// target does so, to answer no faster than the initiator reads; an initiator's reader never waits, so the two can't wait for each other.
// What was written is not waited for: its acknowledgement would have to be read first. maxAsked bounds that.
func (q *queue) waitRoom() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.last && !q.idle && q.unsent > q.limit/2 {
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

// askWeight counts a keys request towards maxAsked; 0 for other frames.
func askWeight(f wire.Frame) int {
	if f, ok := f.(*wire.KeysReq); ok {
		return len(f.Ranges) + 1
	}
	return 0
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
		return base + len(f.Addr) + 8*len(f.Have)
	case *wire.Bye:
		return base + len(f.Text)
	}
	return base
}
