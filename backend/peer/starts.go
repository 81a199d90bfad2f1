package peer

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// starts paces the sessions that we begin. A handshake takes 3 ms of processor time at each end: all at once, 1,000 of them kept the application's
// own calls from the processors. A place is for a handshake that goes on: so peers that do not answer, or are stopped, delay others little.
type starts struct{ places chan struct{} }

const (
	startAnswer = 20 * time.Millisecond  // for a peer's challenge: then the place is free
	startMost   = 100 * time.Millisecond // for the rest of a handshake
)

func newStarts() *starts { return &starts{make(chan struct{}, max(4, 2*runtime.GOMAXPROCS(0)))} }

// start is a place.
type start struct {
	of    *starts
	timer *time.Timer
	once  sync.Once
}

// take waits for a place. The caller calls done. nil: ctx has ended.
func (s *starts) take(ctx context.Context) *start {
	select {
	case s.places <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	p := &start{of: s}
	p.timer = time.AfterFunc(startAnswer, p.end)
	return p
}

// answered: the peer takes part in the handshake.
func (p *start) answered() {
	if p != nil && p.timer.Stop() {
		p.timer.Reset(startMost)
	}
}

// done ends the place, if it has not ended.
func (p *start) done() {
	if p != nil {
		p.timer.Stop()
		p.end()
	}
}

func (p *start) end() { p.once.Do(func() { <-p.of.places }) }
