package peer

import (
	"sync"
	"sync/atomic"

	"gorail/backend/wire"
)

// maxPendingKeys bounds the outstanding keys requests, by weight. Answers are many times larger than requests. The
// target keeps an answer until it is acknowledged, which every later request does. The bound keeps the target's
// answers below 4 MiB.
const maxPendingKeys = 4 * (wire.MaxRanges + 1)

// queue holds the frames that a stream has not sent, and the frames that the other side has not acknowledged. Their
// memory is bounded. Pushing never waits. The writer encodes a frame again for each connection, so the frame's slices
// must not change. Methods take mu, unless their comment says that they need it.
type queue struct {
	limit int           // constant
	total *atomic.Int64 // bytes of all inbound streams; nil: not counted
	wake  func()        // called with mu when there are frames to take, and at the end; it must not wait

	mu          sync.Mutex
	room        sync.Cond // on mu: unsent shrank, the connection is gone, or the end
	items       []item    // oldest first
	base        uint64    // number of items[0], and the count of acknowledged frames
	next        int       // items[next:] have not been taken for the current connection
	high        uint64    // frames with lower numbers have been taken for some connection
	bytes       int       // cost of all items
	unsent      int       // cost of items[next:]
	pendingKeys int       // weight of the keys requests that were taken and are not answered
	pongDue     bool      // a Ping needs an answer,
	seq         uint64    // with this number
	last        bool      // the queue accepts no more frames
	idle        bool      // there is no connection, so nothing is written
}

type item struct {
	frame wire.Frame
	cost  int
}

func newQueue(limit int, wake func()) *queue {
	q := &queue{limit: limit, wake: wake}
	q.room.L = &q.mu
	return q
}

// push appends all frames or none. It returns false if they would exceed the limit. After the end it drops them.
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
	if q.bytes+cost > q.limit { //limit:session_frames
		return false
	}
	q.append(frames...)
	return true
}

// finish appends the last frame, regardless of the limit.
func (q *queue) finish(f wire.Frame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.last {
		q.append(f)
		q.end()
	}
}

// append needs mu.
func (q *queue) append(frames ...wire.Frame) {
	for _, f := range frames {
		it := item{f, frameCost(f)}
		q.items = append(q.items, it)
		q.hold(it.cost)
		q.unsent += it.cost
	}
	q.wake()
}

// drop ends the queue and drops its frames.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.hold(-q.bytes)
	q.items, q.next, q.unsent, q.pongDue = nil, 0, 0, false
	q.end()
}

// take appends the next frames to to, about batch bytes, and returns their cost. end reports that no more frames will
// come.
func (q *queue) take(to []wire.Frame, batch int) (frames []wire.Frame, cost int, end bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	frames = to
	for q.next < len(q.items) && cost < batch {
		it := q.items[q.next]
		if number := q.base + uint64(q.next); number >= q.high {
			w := keysWeight(it.frame)
			if q.pendingKeys > 0 && q.pendingKeys+w > maxPendingKeys && w > 0 && !q.last {
				break
			}
			q.pendingKeys += w
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

// ack drops the frames with numbers below got. It returns false for a number that the other side cannot have reached.
// A repeated number changes nothing.
func (q *queue) ack(got uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.forget(got)
}

// resumable reports whether rewind would succeed.
func (q *queue) resumable(got uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.base <= got && got <= q.high
}

// rewind starts over with a new connection, whose other side has received got frames. Later frames are sent again.
// resent counts those that had been taken for an earlier connection. rewind returns false and changes nothing for an
// impossible number.
func (q *queue) rewind(got uint64) (resent uint64, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if got < q.base || !q.forget(got) {
		return 0, false
	}
	resent = uint64(q.next)
	q.next, q.unsent = 0, q.bytes
	q.idle = false
	q.pongDue = false // the Ping came over the previous connection
	return resent, true
}

// disconnected records that there is no connection until rewind.
func (q *queue) disconnected() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.idle = true
	q.room.Broadcast()
}

// forget needs mu.
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

// hold counts the cost of frames that are added (positive) or removed (negative). It needs mu.
func (q *queue) hold(cost int) {
	q.bytes += cost
	if q.total != nil {
		q.total.Add(int64(cost))
	}
}

// kept returns the cost of the frames that are queued or not acknowledged.
func (q *queue) kept() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}

// acked returns the number of frames that the other side has acknowledged.
func (q *queue) acked() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.base
}

// answered subtracts an answered keys request, which makes room for further ones.
func (q *queue) answered(ranges int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pendingKeys = max(0, q.pendingKeys-ranges-1)
	q.wake()
}

// pong records that a Ping needs an answer. Pings that come before the writer's next turn share one answer.
func (q *queue) pong(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.last {
		q.pongDue, q.seq = true, seq
		q.wake()
	}
}

// takePong returns the Ping to answer, if any.
func (q *queue) takePong() (seq uint64, pongDue bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	pongDue, q.pongDue = q.pongDue, false
	return q.seq, pongDue
}

// waitRoom waits until at most half of the queue's limit is unsent, there is no connection, or the end. A target's
// reader waits here, so that the target answers no faster than the initiator reads. An initiator's reader never
// waits, so the two sides cannot deadlock. waitRoom ignores written frames, because their acknowledgement would have
// to be read first. maxPendingKeys bounds those.
func (q *queue) waitRoom() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.last && !q.idle && q.unsent > q.limit/2 {
		q.room.Wait()
	}
}

// end needs mu.
func (q *queue) end() {
	q.last = true
	q.room.Broadcast()
	q.wake()
}
