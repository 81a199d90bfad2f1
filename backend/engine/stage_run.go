package engine

import (
	"bytes"
	"errors"
	"sync"
	"time"

	"gorail/backend/core"
	"gorail/backend/region"
	"gorail/backend/status"
)

var errStopped = errors.New("stopped")

// stagedRun is one run of a transfer that no link carries as it is: its operations are sorted by what memory they go between; what links
// carry is posted as inner transfers, the rest goes in chunks over rings. It has goroutines of its own, and ends the transfer.
type stagedRun struct {
	t        *transfer
	r        *remote
	asked    *asking // of the session that it began in
	regions  map[uint32]*region.Region
	tried    linksTried
	hasNotif bool
	msg      []byte
	began    time.Time
	stop     chan struct{} // closed when it is to end early

	mu     sync.Mutex
	code   status.Code
	err    error // why it ends early
	inner  map[*transfer]struct{}
	copies int // of our memory, under way
}

// linksTried is what a run knows of links that may carry the whole of it.
type linksTried int

const (
	linksUntried linksTried = iota
	linksRefused            // they don't reach the peer's memory
	linksOpening            // they will: it is being mapped
)

// stage starts a run. Under t.mu or with t queued, with x running.
func (t *transfer) stage(r *remote, hasNotif bool, msg []byte, tried linksTried) {
	s := &stagedRun{t: t, r: r, asked: r.asked, tried: tried, regions: t.regionsOf(), hasNotif: hasNotif, msg: bytes.Clone(msg), began: time.Now(), stop: make(chan struct{}),
		inner: map[*transfer]struct{}{}}
	t.run.Store(s)
	t.sampled = t.x.Posted() // what the core knows of times is of another run
	t.e.late.Go(s.main)
}

func (s *stagedRun) main() {
	s.t.e.stage.transfers.Add(1)
	err := s.live()
	if err == nil {
		err = s.move()
	}
	if err == nil && s.hasNotif {
		err = s.notify()
	}
	s.finish(err)
}

// cancel makes it end soon; the first reason counts.
func (s *stagedRun) cancel(code status.Code, err error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	if code >= 0 {
		code = status.ErrBackend
	}
	s.code, s.err = code, err
	close(s.stop)
	var inner []*transfer
	for t := range s.inner {
		inner = append(inner, t)
	}
	s.mu.Unlock()
	for _, t := range inner {
		t.abort(code, err.Error())
	}
}

// fail is cancel for what went wrong on the way; a session that has ended says itself what that means.
func (s *stagedRun) fail(err error) {
	code := status.Of(err)
	s.r.mu.RLock()
	if s.r.state != ready {
		code = s.r.code
		if s.r.state == closed {
			code = status.ErrBackend
		}
	}
	s.r.mu.RUnlock()
	s.cancel(code, err)
}

// live says whether all of the memory is registered. Whoever deregisters some says so first, and then looks for transfers in progress, which
// this one is already.
func (s *stagedRun) live() error {
	for _, g := range s.regions {
		if !g.Core.Live() {
			return status.Errorf(status.ErrBackend, "memory %#x+%d was deregistered", g.Addr, g.Len)
		}
	}
	return nil
}

// finish gives the transfer its status.
func (s *stagedRun) finish(err error) {
	t := s.t
	e := t.e
	if err != nil {
		s.fail(err)
	}
	s.mu.Lock()
	code, err := s.code, s.err
	s.mu.Unlock()
	t.mu.Lock()
	if err != nil && !t.zombie.Load() {
		e.log.Error("transfer failed", "peer", s.r.name, "status", code.String(), "reason", err, "bytes", t.bytes, "staged", true)
	}
	if err == nil {
		s.r.rates.add(t.bytes, time.Since(s.began))
		e.stage.bytes.Add(t.bytes)
	}
	t.untold.Store(false)
	t.run.Store(nil)
	end, held := int32(code), false
	if t.x.Hold(); err != nil {
		end, held = t.hold(end, true)
	}
	if !held {
		t.x.Settle(end)
	}
	t.mu.Unlock()
	if t.zombie.Load() {
		e.reap(t)
	}
	s.r.settleRevokes()
}

// notify sends the notification, behind all bytes.
func (s *stagedRun) notify() error {
	for end := time.Now().Add(s.t.e.opt.XferTimeout); ; {
		s.r.mu.RLock()
		state := s.r.state
		err := errSessionOver
		if state == ready {
			err = s.r.home.l.Notify(s.msg)
		}
		s.r.mu.RUnlock()
		if !errors.Is(err, core.ErrFull) || time.Now().After(end) {
			return err
		}
		select {
		case <-s.stop:
			return errStopped
		case <-time.After(time.Millisecond):
		}
	}
}
