package host

// A Queue keeps callers from waiting for a log that is not read. Lines go through a bounded queue, and one
// goroutine writes them.
//
// Normally Write returns after its line is written, so a crash loses no line. If the output takes no lines, Write
// waits once, for a short time. From then on Write only queues, until all lines are written and a further pause has
// passed. A line that finds the queue full is dropped and counted. The count is written in its place.

import (
	"sync"
	"syscall"
	"time"
)

// QueueOptions are the options of a Queue. All fields are needed.
type QueueOptions struct {
	Write    func(line []byte) error       // may block for any time; its errors are ignored, because there is no other output
	Dropped  func(lines int) (line []byte) // formats the line that reports dropped lines
	Bytes    int                           // bound of the queued lines, in bytes
	Patience time.Duration                 // the longest that Write waits for the output
	Recovery time.Duration                 // how long Write only queues after a stuck output has taken all lines
}

// Queue is an io.Writer: one Write is one line. It is safe for concurrent use.
type Queue struct {
	o QueueOptions

	mu      sync.Mutex
	lines   [][]byte
	bytes   int
	dropped int
	busy    chan struct{} // closed when all lines are written; nil: all are
	stuck   bool          // a Write has timed out since all lines were last written
	until   time.Time     // Write does not wait before this time
}

// NewQueue makes a queue. The queue needs no Close: its goroutine runs only while there are lines.
func NewQueue(o QueueOptions) *Queue { return &Queue{o: o} }

// Write copies a line into the queue. It never fails.
func (q *Queue) Write(line []byte) (int, error) {
	busy, wait := q.push(line)
	if wait && !closed(busy, q.o.Patience) {
		q.mu.Lock()
		q.stuck = true
		q.mu.Unlock()
	}
	return len(line), nil
}

func (q *Queue) push(line []byte) (busy chan struct{}, wait bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes+len(line) > q.o.Bytes { //limit:log_queue
		q.dropped++
		return nil, false
	}
	q.logDropped()
	q.append(append([]byte(nil), line...))
	if q.busy == nil {
		q.busy = make(chan struct{})
		go q.run()
	}
	return q.busy, !q.stuck && time.Now().After(q.until)
}

// logDropped appends the count of dropped lines in their place. It needs mu.
func (q *Queue) logDropped() {
	if q.dropped > 0 {
		q.append(q.o.Dropped(q.dropped))
		q.dropped = 0
	}
}

func (q *Queue) append(line []byte) {
	q.lines = append(q.lines, line)
	q.bytes += len(line)
}

// run writes until the queue is empty.
func (q *Queue) run() {
	for {
		line := q.first()
		if line == nil {
			return
		}
		_ = q.o.Write(line)
		q.mu.Lock()
		q.lines, q.bytes = q.lines[1:], q.bytes-len(line)
		q.mu.Unlock()
	}
}

// first returns the line to write, or nil to end the goroutine. The line counts towards the bound until it is
// written.
func (q *Queue) first() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.lines) == 0 {
		q.logDropped()
	}
	if len(q.lines) > 0 {
		return q.lines[0]
	}
	if q.stuck {
		q.stuck, q.until = false, time.Now().Add(q.o.Recovery)
	}
	close(q.busy)
	q.busy, q.lines = nil, nil
	return nil
}

// Flush waits until all lines are written, at most for the given time. It returns false if some are not.
func (q *Queue) Flush(most time.Duration) bool {
	q.mu.Lock()
	busy := q.busy
	q.mu.Unlock()
	return busy == nil || closed(busy, most)
}

// closed waits for a channel to be closed, and reports whether it was closed in time. It uses no timer: Go's runtime opens its
// poller with the first timer, and ends the process if no file descriptor is left, which is what this line may say.
func closed(c chan struct{}, most time.Duration) bool {
	const nap = 20 * time.Microsecond // writing a line takes 5 to 50 us
	for end := time.Now().Add(most); ; {
		select {
		case <-c:
			return true
		default:
		}
		if !time.Now().Before(end) {
			return false
		}
		t := syscall.NsecToTimespec(int64(nap))
		_ = syscall.Nanosleep(&t, nil) // EINTR: looks again
	}
}
