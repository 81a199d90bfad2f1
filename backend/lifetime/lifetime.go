// Package lifetime says whether an engine lives. Whatever calls into an engine from outside (control channel, timers, events) enters it first,
// and the end of the engine waits for those that are inside.
package lifetime

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosing refuses a call to an engine that is being closed.
var ErrClosing = errors.New("the engine is closing")

// Engine is the life of one engine. The zero value is alive. Safe for concurrent use.
type Engine struct {
	IDs atomic.Uint64 // the last number given to a link, a session or a request

	closed atomic.Bool
	behind sync.WaitGroup // see Go

	inside sync.RWMutex // held for reading by those inside
	dead   bool         // guarded by inside: nobody enters any more

	timers struct { // of After
		mu      sync.Mutex
		pending map[*time.Timer]struct{}
		stopped bool
	}
}

// NextID is a number that no link, session or request of the engine has.
func (e *Engine) NextID() uint64 { return e.IDs.Add(1) }

// Close begins the end; false: it has begun before.
func (e *Engine) Close() (first bool) { return !e.closed.Swap(true) }

// Closed says that the end has begun.
func (e *Engine) Closed() bool { return e.closed.Load() }

// Enter notes that a call from outside is going on; false: the engine is gone. Leave follows.
func (e *Engine) Enter() bool {
	e.inside.RLock()
	if e.dead {
		e.inside.RUnlock()
		return false
	}
	return true
}

// Leave ends what Enter began.
func (e *Engine) Leave() { e.inside.RUnlock() }

// After runs f later, unless the engine is gone by then. An engine that is gone keeps no timer, which would keep all of its memory for as long.
func (e *Engine) After(d time.Duration, f func()) {
	t := &e.timers
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	if t.pending == nil {
		t.pending = map[*time.Timer]struct{}{}
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		t.mu.Lock()
		delete(t.pending, timer)
		t.mu.Unlock()
		if e.Enter() {
			defer e.Leave()
			f()
		}
	})
	t.pending[timer] = struct{}{}
}

// stopTimers ends all that have not fired.
func (e *Engine) stopTimers() {
	t := &e.timers
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	for timer := range t.pending {
		timer.Stop()
	}
	t.pending = nil
}

// Go runs f in a goroutine that the end of the engine waits for: see Wait.
func (e *Engine) Go(f func()) { e.behind.Go(f) }

// Wait returns when the goroutines of Go have ended.
func (e *Engine) Wait() { e.behind.Wait() }

// Quiesce waits, at most so long, until nobody is inside, and lets nobody enter any more. False: somebody stays.
func (e *Engine) Quiesce(most time.Duration) bool {
	for deadline := time.Now().Add(most); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
		if e.inside.TryLock() {
			e.dead = true
			e.inside.Unlock()
			e.stopTimers()
			return true
		}
	}
	return false
}
