package region

import (
	"sync"
	"sync/atomic"
	"time"
)

// An agent that is destroyed deregisters all its memory, then unloads the metadata of peers, then ends the engine. It makes these
// calls one after the other and registers nothing. Its peers want to know whether memory that is gone is part of that.
const (
	pauseStep  = 100 * time.Millisecond
	pauseSteps = 6
)

// destructor looks for the calls of an agent's destructor. The zero value has seen none.
type destructor struct {
	stays atomic.Bool // no destructor runs: the agent has registered memory since, or has paused

	mu         sync.Mutex
	running    int  // deregistrations that have not returned; one more once the engine ends
	registered bool // since the last deregistration
	watching   bool // a step is due
	quiet      int  // steps since the last call
}

// registers notes a registration: no destructor makes one.
func (d *destructor) registers() {
	if d.stays.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running == 0 {
		d.registered = true
		d.stays.Store(true)
	}
}

// begins notes the begin of a deregistration, or the end of the engine, which no call ends.
func (d *destructor) begins() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running++
	d.registered = false
	d.stays.Store(false)
}

// ends notes the end of a deregistration. after calls a function later; nil: there are no pauses.
func (d *destructor) ends(after func(time.Duration, func())) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running--
	d.called(after)
}

// unloads notes that metadata was unloaded. A destructor has deregistered all memory before.
func (d *destructor) unloads(after func(time.Duration, func())) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.registered {
		d.stays.Store(false)
		d.called(after)
	}
}

// called begins a pause anew. Under mu.
func (d *destructor) called(after func(time.Duration, func())) {
	d.quiet = 0
	if !d.watching && after != nil {
		d.watching = true
		after(pauseStep, func() { d.step(after) })
	}
}

// step counts a pause in steps: in a process that was stopped, all timers are due at once, and its threads have not run.
func (d *destructor) step(after func(time.Duration, func())) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.running > 0:
		d.quiet = 0
	case d.quiet+1 < pauseSteps:
		d.quiet++
	default:
		d.watching = false
		d.stays.Store(true)
		return
	}
	after(pauseStep, func() { d.step(after) })
}
