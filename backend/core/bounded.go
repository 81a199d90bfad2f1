package core

import (
	"log/slog"
	"time"
)

// leastPatience is what a step gets after the time of all steps has passed. A step that waits for nothing takes microseconds.
const stepPatience = 100 * time.Millisecond

// Bounded runs the steps that free what an engine has, with one bound for all. A step that is late goes on in its goroutine: a call of
// the GPU driver cannot be ended, and may wait for ever. One goroutine uses a Bounded.
type Bounded struct {
	Log   *slog.Logger
	Until time.Time
	Late  bool // a step has not ended: what it uses must stay
}

// Do runs free, and returns once it has ended or is late. what is what free frees. The steps after a late one use nothing of it.
func (b *Bounded) Do(what string, free func()) {
	if !within(max(time.Until(b.Until), stepPatience), free) {
		b.Late = true
		b.Log.Warn("not freed at the end of the engine: a GPU has unfinished work, or its driver still translates kernels; the driver frees nothing before that has ended", "stays", what)
	}
}

// within runs f in a goroutine and waits for its end, for most at the longest. It returns false if f goes on.
func within(most time.Duration, f func()) bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}
