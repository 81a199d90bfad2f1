package peer

import (
	"sync"
	"time"
)

// writing starts the goroutine of a stream that writes when there is something to write. A thousand idle streams had a goroutine each, with
// 8 KiB of stack. Methods take mu: any goroutine of the stream calls them.
type writing struct {
	start func()        // starts the goroutine; constant
	over  chan struct{} // closed after the last write

	mu      sync.Mutex
	begun   bool
	running bool        // it runs, or has ended
	woken   bool        // it looks again before it rests
	pinging bool        // it sends a ping, whenever the last one was
	timer   *time.Timer // of the next ping; nil: none was ever due
}

func newWriting(start func()) *writing { return &writing{start: start, over: make(chan struct{})} }

// begin starts the goroutine the first time. Nothing is written before.
func (w *writing) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.begun, w.running = true, true
	w.start()
}

// wake makes the goroutine look for something to write. It may be called with the stream's and the queue's locks.
func (w *writing) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.begun:
	case w.running:
		w.woken = true
	default:
		w.running = true
		w.start()
	}
}

// ping makes the goroutine send a ping.
func (w *writing) ping() {
	w.mu.Lock()
	w.pinging = true
	w.mu.Unlock()
	w.wake()
}

// pings returns true, once, after ping.
func (w *writing) pings() (was bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, w.pinging = w.pinging, false
	return was
}

// rest is called by the goroutine when it has nothing to write until a time after now; 0: until wake. It must return if the result is true, and look
// again if not.
func (w *writing) rest(after time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.woken {
		w.woken = false
		return false
	}
	w.running = false
	switch {
	case after > 0 && w.timer == nil:
		w.timer = time.AfterFunc(after, w.wake)
	case after > 0:
		w.timer.Reset(after)
	case w.timer != nil:
		w.timer.Stop()
	}
	return true
}

// end is called by the goroutine after the last write.
func (w *writing) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
	}
	close(w.over)
}
