// Package logqueue lets nobody wait for a log that is not read. Lines go through a bounded queue; one goroutine writes them.
//
// In the ordinary case a line is written when Write returns, so that none is lost at a crash. When the output takes no lines, Write
// waits once and briefly; from then on it only queues, until the output has kept up for a while. A line that finds the queue full is
// dropped and counted. The count takes its place in the output.
package logqueue

import (
	"sync"
	"time"
)

// Options of a Queue. All fields are needed.
type Options struct {
	Write    func(line []byte) error       // may take as long as it likes; its errors are ignored: there is no other output
	Dropped  func(lines int) (line []byte) // says how many lines were dropped
	Bytes    int                           // what the queue holds at most
	Patience time.Duration                 // how long Write waits for the output
	Calm     time.Duration                 // how long it does not wait once all is written again
}

// Queue is an io.Writer; one Write is one line. Safe for concurrent use.
type Queue struct {
	o Options

	mu      sync.Mutex
	lines   [][]byte
	bytes   int
	dropped int
	busy    chan struct{} // closed when all lines are written; nil: they are
	stuck   bool          // Write has waited in vain since all was written last
	until   time.Time     // Write does not wait before
}

// New makes a queue. It has no end; its goroutine lives while there are lines.
func New(o Options) *Queue { return &Queue{o: o} }

// Write takes a line over. It never fails.
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
	if q.bytes+len(line) > q.o.Bytes {
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

// logDropped puts the count where the dropped lines would be. With mu held.
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

// run writes until there is nothing to write.
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

// first is the line to be written; nil ends the goroutine. The line counts against the bound until it is written.
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
		q.stuck, q.until = false, time.Now().Add(q.o.Calm)
	}
	close(q.busy)
	q.busy, q.lines = nil, nil
	return nil
}

// Flush waits until all lines are written, but not longer than that; false: some are not.
func (q *Queue) Flush(most time.Duration) bool {
	q.mu.Lock()
	busy := q.busy
	q.mu.Unlock()
	return busy == nil || closed(busy, most)
}

// closed waits for a channel to be closed.
func closed(c chan struct{}, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		return false
	}
}
