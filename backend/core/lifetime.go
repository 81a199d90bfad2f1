package core

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// ErrClosing refuses a call to an engine that is closing.
var ErrClosing = errors.New("the engine is closing")

// Lifetime is the one Lifetime of an engine: whether it is alive, and the numbers of what it makes. Its end is Engine.Close (BeginEnd, Wait,
// Quiesce); sessions, transfers and staging enter it. Calls from outside (control channel, timers, events) enter first. The end of the engine waits
// for the calls inside; then its core is freed. The zero value is alive. Safe for concurrent use.
type Lifetime struct {
	IDs atomic.Uint64 // the last number given to a link, session or request

	closed  atomic.Bool
	running sync.WaitGroup // see Go

	inside sync.RWMutex // read lock: held by each call inside
	dead   bool         // guarded by inside: no call may enter any more

	timers struct { // timers of After
		mu      sync.Mutex
		pending map[*time.Timer]struct{}
		stopped bool
	}
}

// NextID returns a new number, unique in the engine: for links, sessions and requests to a peer (fence, REVOKE, copy). Any goroutine, with any lock.
func (l *Lifetime) NextID() uint64 { return l.IDs.Add(1) }

// BeginEnd notes that the end has begun, for Engine.Close alone. Calls may still Enter until Quiesce. False: it had begun before.
func (l *Lifetime) BeginEnd() (first bool) { return !l.closed.Swap(true) }

// Ending reports whether the end has begun.
func (l *Lifetime) Ending() bool { return l.closed.Load() }

// Enter registers a call from outside. It returns false if the engine is gone. If it returns true, the caller calls
// Leave.
func (l *Lifetime) Enter() bool {
	l.inside.RLock()
	if l.dead {
		l.inside.RUnlock()
		return false
	}
	return true
}

// Leave ends the call that Enter registered.
func (l *Lifetime) Leave() { l.inside.RUnlock() }

// After runs f after d, unless the engine is gone by then. A gone engine keeps no timers: a timer would keep all its
// memory alive.
func (l *Lifetime) After(d time.Duration, f func()) { l.Later(d, f) }

// Later is After. cancel forgets f, and what f keeps alive, unless it runs already. It does not wait, and may be called again.
func (l *Lifetime) Later(d time.Duration, f func()) (cancel func()) {
	t := &l.timers
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return func() {}
	}
	if t.pending == nil {
		t.pending = map[*time.Timer]struct{}{}
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		t.mu.Lock()
		delete(t.pending, timer)
		run := f
		t.mu.Unlock()
		if run != nil && l.Enter() {
			defer l.Leave()
			run()
		}
	})
	t.pending[timer] = struct{}{}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		timer.Stop() // Go's runtime keeps a stopped timer until it was due, if there are few of them
		delete(t.pending, timer)
		f = nil
	}
}

// stopTimers stops all timers that have not fired.
func (l *Lifetime) stopTimers() {
	t := &l.timers
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	for timer := range t.pending {
		timer.Stop()
	}
	t.pending = nil
}

// Go runs f in a goroutine that Wait waits for.
func (l *Lifetime) Go(f func()) { l.running.Go(f) }

// Wait waits until the goroutines of Go have ended, for most at the longest. It returns false if some go on: a call of the GPU driver may
// wait for ever.
func (l *Lifetime) Wait(most time.Duration) bool { return within(most, l.running.Wait) }

// Quiesce waits until no call is inside, for most at the longest, and then lets no call enter. It returns false if calls
// are still inside.
func (l *Lifetime) Quiesce(most time.Duration) bool {
	for deadline := time.Now().Add(most); time.Now().Before(deadline); time.Sleep(100 * time.Microsecond) {
		if l.inside.TryLock() {
			l.dead = true
			l.inside.Unlock()
			l.stopTimers()
			return true
		}
	}
	return false
}
